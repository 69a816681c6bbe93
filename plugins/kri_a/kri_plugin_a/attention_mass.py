"""Attention mass: what share of their softmax the document's own queries put on each block.

Sources: H2O (arXiv 2306.14048), all queries; TOVA (arXiv 2401.06104), the last one, one set per
layer; knlp's KRI-A, the last one. Cost: a prefill of the tokens watched, shared by every scorer of
a bake that watches, and one [q_head, block] sum per layer; the sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch

from kri_core import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Layout, PrefillChunk

Exposure = Literal["none", "count", "lift"]


class AttentionMass:
    """Watches queries from `first_token` on; the first `n_sink` keys are absent."""

    def __init__(
        self, layout: Layout, finish: Callable[[Tensor], Tensor], first_token: int, n_sink: int = 0
    ) -> None:
        self.layout, self.finish, self.n_sink = layout, finish, n_sink
        self.first_token = first_token
        self.sums: dict[int, Tensor] = {}  # layer → float64 [q_head, block]

    def see(self, chunk: PrefillChunk) -> None:
        """Add up the chunk's rows."""
        mass = chunk.without_sinks(self.n_sink, self.layout.block_size)
        rows = mass.sum(1, dtype=torch.float64)
        before = self.sums.get(chunk.layer)
        self.sums[chunk.layer] = rows if before is None else before + rows

    def scores(self) -> Tensor:
        """Float32, by `finish` from sums [layer, q_head, block]."""
        return self.finish(torch.stack([self.sums[layer] for layer in sorted(self.sums)])).float()


def last_token(layout: Layout) -> AttentionMass:
    """kri-a: mass of the document's last token, [layer, kv_head, block]."""
    return AttentionMass(layout, partial(per_kv_head, layout=layout), layout.num_tokens - 1)


def last_token_of_all_heads(layout: Layout) -> AttentionMass:
    """tova: the same, mean over all heads of a layer, [layer, 1, block]."""
    return AttentionMass(layout, partial(torch.mean, dim=1, keepdim=True), layout.num_tokens - 1)


def heavy_hitters(layout: Layout) -> AttentionMass:
    """h2o: sum over all queries, [layer, kv_head, block]."""
    return AttentionMass(layout, partial(per_kv_head, layout=layout), 0)


def over_prefill(layout: Layout, exposure: Exposure, n_sink: int, window: int) -> AttentionMass:
    """attention-prefill: sum over the last `window` (0: all) queries by its exposure.

    Queries that see nothing but sinks have no row.
    """
    whole = layout.num_blocks * layout.block_size
    if n_sink >= whole:
        raise ConfigError(
            f"n_sink={n_sink} drops every token of the document's {layout.num_blocks} blocks of "
            f"{layout.block_size}; make it smaller or write sink=keep"
        )
    first = max(n_sink, layout.num_tokens - window if window else 0)
    shares = exposure_of(layout, exposure, first, n_sink)

    def finish(sums: Tensor) -> Tensor:
        # A block of nothing but sinks is exposed to nobody: 0, not 0/0.
        return per_kv_head(sums / shares.where(shares > 0, torch.inf), layout)

    return AttentionMass(layout, finish, first, n_sink)


def exposure_of(layout: Layout, exposure: Exposure, first: int, n_sink: int) -> Tensor:
    """What each block's sum is divided by, float64 [block], for queries from `first` on.

    none: the number of queries. count: how many of them can see the block's first token. lift: the
    sum uniform causal attention would give, so that a block which draws its fair share scores 1.
    """
    blocks, size, tokens = layout.num_blocks, layout.block_size, layout.num_tokens
    if exposure == "none":
        return torch.full((blocks,), float(tokens - first), dtype=torch.float64)
    if exposure == "count":
        starts = torch.arange(blocks, dtype=torch.float64) * size
        return tokens - starts.clamp(min=first)
    row = torch.zeros(tokens, dtype=torch.float64)  # [token], a query's share for one key
    row[first:] = 1 / torch.arange(first + 1 - n_sink, tokens + 1 - n_sink, dtype=torch.float64)
    key = row.flip(0).cumsum(0).flip(0)  # [token], a key's share of all queries at or after it
    key[:n_sink] = 0
    return key[: blocks * size].reshape(blocks, size).sum(1)


def per_kv_head(by_query_head: Tensor, layout: Layout) -> Tensor:
    """Mean over the query heads of each group, [layer, q_head, block] → [layer, kv_head, block]."""
    layers, _, blocks = by_query_head.shape
    return by_query_head.reshape(layers, layout.num_kv_heads, -1, blocks).mean(2)
