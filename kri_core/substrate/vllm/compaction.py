"""Dropping absent rows from every attention call: exactly absent, not attended as zeros.

Kernels compare a key's index with `seq_len − query_len + query's index`. Taking whole rows out of
the table and their tokens out of `seq_len` shifts both sides alike, so causality stays exact for
prefill, chunked prefill and decode; positions, RoPE and slots are not touched.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

NULL = 0  # the id of vLLM's null block


@frozen(eq=False)
class Compacted:
    """Where a builder's compacted tables live: allocated once, so a CUDA graph may replay them."""

    rows: Tensor  # int32 [request, row + 1]; the last column takes what is dropped
    lengths: Tensor  # int32 [request]

    @classmethod
    def for_requests(cls, count: int, num_rows: int, device: torch.device) -> Compacted:
        """Room for `count` requests of `num_rows` rows."""
        return cls(
            torch.zeros(count, num_rows + 1, dtype=torch.int32, device=device),
            torch.zeros(count, dtype=torch.int32, device=device),
        )

    def holds(self, table: Tensor) -> bool:
        """Whether a block table [request, row] fits."""
        return table.shape[0] <= self.rows.shape[0] and table.shape[1] < self.rows.shape[1]

    def fill(
        self, table: Tensor, seq_lens: Tensor, query_lens: Tensor, block_size: int
    ) -> tuple[Tensor, Tensor]:
        """The table without its null blocks, in order, and the shorter sequence lengths.

        table int32 [request, row], seq_lens and query_lens int32 [request] → the same shapes, in
        this object's memory. Static shapes, no synchronisation with the device. A length never
        falls below its query's.
        """
        requests, width = table.shape
        column = torch.arange(width, device=table.device, dtype=torch.int32)
        used = column < ((seq_lens + (block_size - 1)) // block_size)[:, None]
        present = used & (table != NULL)
        place = torch.where(present, present.cumsum(1) - 1, self.rows.shape[1] - 1)
        rows, lengths = self.rows[:requests], self.lengths[:requests]
        rows.zero_()
        rows.scatter_(1, place.long(), table.to(rows.dtype))
        absent = (used & ~present).sum(1).to(seq_lens.dtype)
        torch.maximum(
            (seq_lens - absent * block_size).to(lengths.dtype),
            query_lens.to(lengths.dtype),
            out=lengths,
        )
        return rows[:, :width], lengths


def any_absent(table: Tensor, seq_lens: Tensor, block_size: int) -> bool:
    """Whether some used row is null; costs a synchronisation where the table is not on the CPU."""
    column = torch.arange(table.shape[1], dtype=torch.int32, device=table.device)
    used = column < ((seq_lens + (block_size - 1)) // block_size)[:, None]
    return bool((used & (table == NULL)).any())
