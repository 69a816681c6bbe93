"""The worker's side: rows of cartridges into the engine's cache, read straight from the file.

Only the wanted blocks are read, each one contiguous in the file for all layers. They are written by
the attention back end's own writer, which knows the cache's layout and dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor
from vllm.logger import init_logger

from kri_core.artifacts import Overlay
from kri_core.errors import ArtifactError, one_line
from kri_core.paging import prefetch
from kri_core.substrate.vllm.orders import LoadOrder, Row
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.stats import Counts
from kri_core.types import Cartridge, Layout

logger = init_logger("vllm.kri_core.loading")

STAGING_ROWS = 64  # rows copied at once: bounds the host memory of one load


@frozen
class Rank:
    """Which KV heads of a model this worker holds (vLLM's own rule for tensor parallel)."""

    index: int
    count: int

    def heads(self, total: int) -> slice:
        """The heads of this rank: a share of them, or one that several ranks repeat."""
        if total >= self.count:
            share = total // self.count
            return slice(self.index * share, (self.index + 1) * share)
        head = self.index // (self.count // total)
        return slice(head, head + 1)


@define(eq=False)
class Loader:
    """Writes what it is ordered to, and says which requests it could not serve."""

    layers: Mapping[str, Any]  # attention layers of the engine, in the model's order
    cartridge_of: Callable[[str], Cartridge]
    rank: Rank
    block_size: int
    counts: Counts
    overlays: Overlays

    def load(self, order: LoadOrder) -> bool:
        """Whether all rows are written; if not, none of them may be attended."""
        start = time.perf_counter()
        try:
            source = self._source_of(order)
            for rows in _batches(order.rows):
                self._write(rows, staged(source, rows, self.rank))
            if self._source_of(order) is not source:
                raise ArtifactError(
                    f"the file of {order.cart_id!r} changed while it was read; send the request "
                    "again"
                )
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the engine
            logger.error("request %s cannot be loaded: %s", order.request_id, one_line(error))
            self.counts.add(load_failures=1)
            return False
        tokens = sum(row.num_tokens for row in order.rows)
        per_token = source.layout.values_per_token * source.tail.element_size()
        self.counts.add(
            rows_loaded=len(order.rows),
            bytes_read=tokens * per_token,
            load_seconds=time.perf_counter() - start,
        )
        return True

    def cartridge_for(self, order: LoadOrder) -> Cartridge:
        """The one that was planned for."""
        cartridge = self.cartridge_of(order.cart_id)
        _check_same(cartridge, order)
        return cartridge

    def _source_of(self, order: LoadOrder) -> Cartridge | Overlay:
        cartridge = self.cartridge_for(order)
        if order.overlay is None:
            return cartridge
        return self.overlays.get(order.cart_id, order.overlay)

    def _write(self, rows: Sequence[Row], kv: Tensor) -> None:
        """Kv [layer, 2, token, kv_head, head_dim] of the rows' tokens."""
        for (_, layer), (keys, values) in zip(self.layers.items(), kv, strict=True):
            cache = layer.kv_cache
            slots = slots_of(rows, self.block_size).to(cache.device)
            write_rows(layer, keys, values, slots)


def write_rows(layer: Any, keys: Tensor, values: Tensor, slots: Tensor) -> None:  # noqa: ANN401
    """One layer's [token, kv_head, head_dim] into its slots, as the engine itself writes."""
    cache, dtype = layer.kv_cache, layer.kv_cache_torch_dtype
    held = [side.to(cache.device, dtype).contiguous() for side in (keys, values)]
    layer.impl.do_kv_cache_update(layer, *held, cache, slots)


def slots_of(rows: Sequence[Row], block_size: int) -> Tensor:
    """Where each token of the rows goes, int64 [token]."""
    places = [
        torch.arange(row.num_tokens, dtype=torch.int64) + row.block_id * block_size for row in rows
    ]
    return torch.cat(places)


def staged(source: Cartridge | Overlay, rows: Sequence[Row], rank: Rank) -> Tensor:
    """KV of the rows' tokens, [layer, 2, token, kv_head, head_dim], this rank's heads."""
    heads = rank.heads(source.layout.num_kv_heads)
    kv = source.kv
    parts = [part for row in rows for part in _parts(source.layout, kv, source.tail, row)]
    prefetch(parts)
    joined = torch.cat([part[:, :, heads] for part in parts], 3)
    return joined.transpose(2, 3)  # of [layer, 2, kv_head, token, head_dim]


def _parts(
    layout: Layout, kv: Tensor | Mapping[int, Tensor], tail: Tensor, row: Row
) -> Iterator[Tensor]:
    """The row's tokens, block by block of the cartridge, then of its tail."""
    token, end = row.first_token, row.first_token + row.num_tokens
    while token < min(end, layout.tail.start):
        block, first = divmod(token, layout.block_size)
        last = min(layout.block_size, first + end - token)
        yield kv[block][..., first:last, :]
        token += last - first
    if token < end:
        yield tail[..., token - layout.tail.start : end - layout.tail.start, :]


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for first in range(0, len(rows), STAGING_ROWS):
        yield rows[first : first + STAGING_ROWS]


def _check_same(cartridge: Cartridge, order: LoadOrder) -> None:
    if cartridge.sha256 != order.sha256:
        raise ArtifactError(
            f"cartridge {order.cart_id!r} was replaced after request {order.request_id} was "
            "planned; send it again"
        )
