"""The block graph without attention: each block's mean key stands in for what it would ask.

Source: ALGORITHMS 7.4; knlp's reference routers ask with keys where they have no query. Cost: no
prefill, a [kv_head, block, token] product per layer, and the graphs, float32
[layer, kv_head, block, block].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

from kri_core import centre_means
from kri_plugin_eigen.centrality import eigen
from kri_plugin_eigen.graph import lift, pool_heads

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Layout, Rope
    from kri_plugin_eigen.synthq import Params


def score(cartridge: Cartridge, rope: Rope, params: Params) -> Tensor:
    """Eigenvector centrality of the stand-in graph, float32 [1, 1, block]."""
    n_sink = params.sinks(cartridge.layout)
    fair = fair_at_ends(cartridge.layout, n_sink)
    layers = stand_in_graphs(cartridge, rope, n_sink, params.temperature)
    pooled = pool_heads(layers, fair, params.heads)
    return eigen(lift(pooled, fair), params.lift_cap, params.epsilon).float().view(1, 1, -1)


def stand_in_graphs(
    cartridge: Cartridge, rope: Rope, n_sink: int, temperature: float
) -> list[Tensor]:
    """Softmax of cosine / temperature over the keys a block's last token sees, summed by block.

    [kv_head, query block, key block] per layer. The mean key is turned to the last token's place.
    """
    layout = cartridge.layout
    blocks, size = layout.num_blocks, layout.block_size
    to_end = torch.full((blocks,), (size - 1) / 2)
    asking = normalize(rope.turn(centre_means(cartridge, rope), to_end), dim=-1)
    token = torch.arange(blocks * size)
    hidden = (token // size > torch.arange(blocks)[:, None]) | (token < n_sink)  # [block, token]
    graphs = []
    for layer in range(layout.num_layers):
        keys = cartridge.kv[:, layer, 0].transpose(0, 1).flatten(1, 2).float()
        cosine = asking[layer] @ normalize(keys, dim=-1).mT  # [kv_head, block, token]
        share = (cosine / temperature).masked_fill(hidden, -torch.inf).softmax(-1)
        # A block that sees nothing but sinks has a row of NaN, all of it hidden.
        share = share.masked_fill(hidden, 0.0)
        graphs.append(share.unflatten(-1, (blocks, size)).sum(-1))
    return graphs


def fair_at_ends(layout: Layout, n_sink: int) -> Tensor:
    """What the last token of each block would give under uniform attention, float64 [block, block].

    Other than `fair_graph`, which is the mean over all of a block's tokens.
    """
    blocks, size = layout.num_blocks, layout.block_size
    keys = (torch.arange(blocks * size) >= n_sink).reshape(blocks, size).sum(1)
    return keys.double().expand(blocks, -1).tril() / keys.cumsum(0).clamp(min=1)[:, None]
