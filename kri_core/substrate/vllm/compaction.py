"""Dropping absent rows from every attention call: exactly absent, not attended as zeros.

Kernels compare a key's index with `seq_len − query_len + query's index`. Taking whole rows out of
the table and their tokens out of `seq_len` shifts both sides alike, so causality stays exact for
prefill, chunked prefill and decode; positions, RoPE and slots are not touched.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Compacted:
    """Where a builder's compacted tables live: allocated once, so a CUDA graph may replay them."""

    rows: Tensor  # int32 [request, row]
    lengths: Tensor  # int32 [request]
    _scratch: Tensor  # int32 [request, row + 1]; the last column takes what is dropped

    @classmethod
    def for_requests(cls, count: int, num_rows: int, device: torch.device) -> Compacted:
        """Room for `count` requests of `num_rows` rows."""
        rows, scratch = (
            torch.zeros(count, width, dtype=torch.int32, device=device)
            for width in (num_rows, num_rows + 1)
        )
        return cls(rows, torch.zeros_like(rows[:, 0]), scratch)

    def holds(self, table: Tensor) -> bool:
        """Whether a block table [request, row] fits."""
        return table.shape[0] <= self.rows.shape[0] and table.shape[1] == self.rows.shape[1]

    def fill(
        self, table: Tensor, seq_lens: Tensor, query_lens: Tensor, block_size: int, per_block: int
    ) -> tuple[Tensor, Tensor]:
        """The table without its null blocks, in order, and the shorter sequence lengths.

        table int32 [request, row], seq_lens and query_lens int32 [request] → the same shapes, in
        this object's memory. A kernel may take smaller blocks, of `block_size` tokens, `per_block`
        of them in one of the cache's: so many ids are the null block's. Static shapes, no
        synchronisation with the device. A length never falls below its query's.
        """
        requests, width = table.shape
        column = torch.arange(width, device=table.device, dtype=torch.int32)
        used = column < ((seq_lens + (block_size - 1)) // block_size)[:, None]
        present = used & (table >= per_block)
        place = torch.where(present, present.cumsum(1) - 1, width)
        scratch = self._scratch[:requests].zero_()
        scratch.scatter_(1, place.long(), table.to(scratch.dtype))
        rows, lengths = self.rows[:requests], self.lengths[:requests]
        rows.copy_(scratch[:, :width])
        absent = (used & ~present).sum(1).to(seq_lens.dtype)
        shorter = (seq_lens - absent * block_size).to(lengths.dtype)
        torch.maximum(shorter, query_lens.to(lengths.dtype), out=lengths)
        return rows, lengths
