"""The block graph: how much the queries of one block attend to another, against a fair share.

Source: knlp names an eigenvector-centrality scorer whose code is in no public commit; this is
ALGORITHMS 7. Cost: one prefill, shared by every scorer of a bake that watches, and the graphs:
float32 [layer, q_head, block, block] are kept until the pass is over, for the weights of the heads
depend on the whole of it. 30 layers of 9 heads over 512 blocks take 283 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Layout, PrefillChunk

HeadPooling = Literal["uniform", "retrieval", "entropy", "concentration", "softmax_gain"]
NEAR = 4  # blocks: a head that looks no further back is a local one (ALGORITHMS 7.3)


class BlockGraph:
    """Watches the whole prefill with the first `n_sink` keys absent."""

    def __init__(
        self, layout: Layout, pooling: HeadPooling, n_sink: int, finish: Callable[[Tensor], Tensor]
    ) -> None:
        self.layout, self.pooling, self.n_sink, self.finish = layout, pooling, n_sink, finish
        self.first_token = 0
        self.sums: dict[int, Tensor] = {}  # layer → [q_head, query block, key block]

    def see(self, chunk: PrefillChunk) -> None:
        """Add each whole block's rows; the tail's are no block's."""
        blocks, size = self.layout.num_blocks, self.layout.block_size
        rows = max(0, blocks * size - chunk.first_token)
        mass = chunk.without_sinks(self.n_sink, size)[:, :rows]
        if chunk.layer not in self.sums:
            self.sums[chunk.layer] = mass.new_zeros(len(mass), blocks, blocks)
        asking = (chunk.first_token + torch.arange(mass.shape[1])) // size
        self.sums[chunk.layer].index_add_(1, asking, mass)

    def scores(self) -> Tensor:
        """Float32 [1, 1, block]: `finish` of the heads' pooled lift."""
        fair = fair_graph(self.layout, self.n_sink)
        queries = _queries(self.layout, self.n_sink).clamp(min=1)
        # In place: a second copy of the graphs would double the peak.
        layers = [self.sums.pop(layer).div_(queries[:, None]) for layer in sorted(self.sums)]
        pooled = pool_heads(layers, fair, self.pooling)
        return self.finish(lift(pooled, fair)).float().view(1, 1, -1)


def fair_graph(layout: Layout, n_sink: int) -> Tensor:
    """The graph of uniform causal attention, float64 [query block, key block]."""
    blocks, size = layout.num_blocks, layout.block_size
    token = torch.arange(blocks * size)
    seen = (token + 1 - n_sink).clamp(min=0).double()  # [token], keys its query sees
    share = torch.where(seen > 0, 1 / seen, 0.0).reshape(blocks, size)
    own = (seen - (token // size * size - n_sink).clamp(min=0)).reshape(blocks, size)
    number = _queries(layout, n_sink)  # of a block: queries that see a key, and keys
    mean_share = share.sum(1) / number.clamp(min=1)
    fair = (mean_share[:, None] * number).tril(-1)
    return fair + ((share * own).sum(1) / number.clamp(min=1)).diag()


def _queries(layout: Layout, n_sink: int) -> Tensor:
    """Tokens of each block that are no sinks, float64 [block]."""
    token = torch.arange(layout.num_blocks * layout.block_size)
    return (token >= n_sink).reshape(-1, layout.block_size).sum(1, dtype=torch.float64)


def lift(graph: Tensor, fair: Tensor) -> Tensor:
    """Edges to earlier blocks as multiples of a fair share, [..., block, block]; others are 0."""
    # Where uniform attention gives nothing there is nothing: a block of sinks has no edges.
    return (graph / fair.where(fair > 0, torch.inf)).tril(-1)


def pool_heads(layers: list[Tensor], fair: Tensor, pooling: HeadPooling) -> Tensor:
    """Weighted mean of all heads' graphs, float64 [block, block].

    layers: [q_head, block, block] each. Where no head stands out all count alike.
    """
    weigh = WEIGHTS[pooling]
    weights = torch.stack([weigh(heads.double(), fair) for heads in layers])  # [layer, q_head]
    if weights.sum() <= 0:
        weights = torch.ones_like(weights)
    weights = weights / weights.sum()
    each = (torch.tensordot(w, h.double(), 1) for w, h in zip(weights, layers, strict=True))
    return torch.stack(list(each)).sum(0)


def _retrieval(heads: Tensor, fair: Tensor) -> Tensor:
    """Lift of the edges over more than NEAR blocks, summed, [q_head]: what local heads lack."""
    far = (fair > 0).tril(-NEAR - 1)
    return lift(heads, fair)[:, far].sum(-1)


def _affinities(heads: Tensor, fair: Tensor) -> Tensor:
    """Mass of later blocks on each against its fair share, [q_head, block that has later ones]."""
    exposed = fair.tril(-1).sum(0)
    return (heads.tril(-1).sum(1) / exposed)[:, exposed > 0]


def _entropy(heads: Tensor, fair: Tensor) -> Tensor:
    """Log N − H of the head's affinities, [q_head]; as weights the same as 1 − H / log N."""
    share = _affinities(heads, fair)
    share = share / share.sum(-1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
    count = share.shape[-1]
    return _information(share, torch.full_like(share, 1 / max(count, 1)))


def _concentration(heads: Tensor, fair: Tensor) -> Tensor:
    """Peak over mean of the head's affinities, [q_head]."""
    affinities = _affinities(heads, fair)
    if affinities.shape[-1] == 0:
        return affinities.new_ones(len(heads))
    return affinities.amax(-1) / affinities.mean(-1).clamp(min=torch.finfo(heads.dtype).tiny)


def _softmax_gain(heads: Tensor, fair: Tensor) -> Tensor:
    """What a query block's choice says beyond uniform attention, in nats, mean, [q_head]."""
    return _information(heads, fair).mean(-1)


def _information(share: Tensor, fair: Tensor) -> Tensor:
    """KL(share ‖ fair) over the last axis; log N − H where fair is flat."""
    ratio = torch.where((share > 0) & (fair > 0), share / fair, 1.0)
    return (share * ratio.log()).sum(-1).clamp(min=0)


WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "uniform": lambda heads, _fair: heads.new_ones(len(heads)),
    "retrieval": _retrieval,
    "entropy": _entropy,
    "concentration": _concentration,
    "softmax_gain": _softmax_gain,
}
