"""The block graph without attention: queries that stand in for those of a block's last token.

Source: ALGORITHMS 7.4. A head's usual query before RoPE (TriAttention's centre, arXiv 2604.04921),
turned to the block's last position, or, as knlp's reference routers do where they have no query,
the block's mean key. Cost: no prefill, a [head, block, token] product per layer, and the graphs,
float32 [layer, head, block, block], which are kept until all layers are done.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize, pad

from kri_core import ConfigError, centre_means
from kri_plugin_eigen.centrality import eigen
from kri_plugin_eigen.graph import lift, pool_heads

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Calibration, Cartridge, Layout, Probe, Rope
    from kri_plugin_eigen.synthq import Params


def score(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Eigenvector centrality of the stand-in graph, float32 [1, 1, block]."""
    n_sink = params.sinks(cartridge.layout)
    if params.queries == "keys":
        layers = key_graphs(cartridge, probe.rope, n_sink, params.temperature)
    else:
        layers = centre_graphs(cartridge, probe.rope, _calibration(cartridge, probe), n_sink)
    fair = fair_at_ends(cartridge.layout, n_sink)
    pooled = pool_heads(layers, fair, params.heads)
    return eigen(lift(pooled, fair), params.lift_cap, params.epsilon).float().view(1, 1, -1)


def _calibration(cartridge: Cartridge, probe: Probe) -> Calibration:
    found = probe.calibration
    if found is None:
        raise ConfigError(
            "'eigen-synthq' needs the model's calibration, and there is none; run kri-core "
            f"calibrate --model {cartridge.model.model_id} --text FILE, once, with any plain text, "
            "or let keys ask: eigen-synthq[queries=keys]"
        )
    return found


def centre_graphs(
    cartridge: Cartridge, rope: Rope, calibration: Calibration, n_sink: int
) -> list[Tensor]:
    """Softmax of the logits that a head's usual query has at the last position of each block.

    [q_head, query block, key block] per layer.
    """
    layout = cartridge.layout
    ends = (torch.arange(layout.num_blocks) + 1) * layout.block_size - 1
    still = calibration.centre.shape[-1] - len(rope.inv_freq)  # pairs that are not rotated
    angle = ends[:, None] * pad(rope.inv_freq, (0, still))  # [block, pair]
    # A stored key carries the rotary scaling once, and so does the query.
    scaling = pad(torch.full_like(rope.inv_freq, rope.scaling), (0, still), value=1.0)
    turn = torch.polar(scaling.expand_as(angle), angle)
    graphs = []
    for layer in range(layout.num_layers):
        pairs = rope.pairs(_keys(cartridge, layer))[:, None]  # [kv_head, 1, token, pair]
        asking = calibration.centre[layer].to(torch.complex128)[:, None] * turn
        asking = asking.unflatten(0, (layout.num_kv_heads, -1))  # [kv_head, group, block, pair]
        logits = (asking @ pairs.conj().mT).real.flatten(0, 1) / math.sqrt(layout.head_dim)
        graphs.append(_block_sums(logits, layout, n_sink).float())
    return graphs


def key_graphs(cartridge: Cartridge, rope: Rope, n_sink: int, temperature: float) -> list[Tensor]:
    """Softmax of cosine / temperature of a block's mean key, turned to its last token's place.

    [kv_head, query block, key block] per layer.
    """
    layout = cartridge.layout
    to_end = torch.full((layout.num_blocks,), (layout.block_size - 1) / 2)
    asking = normalize(rope.turn(centre_means(cartridge, rope), to_end), dim=-1)
    graphs = []
    for layer in range(layout.num_layers):
        keys = normalize(_keys(cartridge, layer), dim=-1)
        cosine = asking[layer] @ keys.mT  # [kv_head, block, token]
        graphs.append(_block_sums(cosine / temperature, layout, n_sink))
    return graphs


def _keys(cartridge: Cartridge, layer: int) -> Tensor:
    """Stored keys of all whole blocks, float32 [kv_head, token, head_dim]."""
    return cartridge.kv[:, layer, 0].transpose(0, 1).flatten(1, 2).float()


def _block_sums(logits: Tensor, layout: Layout, n_sink: int) -> Tensor:
    """Softmax over the keys that a block's last token sees, summed by block.

    [head, query block, token] → [head, query block, key block].
    """
    blocks, size = layout.num_blocks, layout.block_size
    token = torch.arange(blocks * size)
    hidden = (token // size > torch.arange(blocks)[:, None]) | (token < n_sink)  # [block, token]
    share = logits.masked_fill(hidden, -torch.inf).softmax(-1)
    # A block that sees nothing but sinks has a row of NaN, all of it hidden.
    return share.masked_fill(hidden, 0.0).unflatten(-1, (blocks, size)).sum(-1)


def fair_at_ends(layout: Layout, n_sink: int) -> Tensor:
    """What the last token of each block would give under uniform attention, float64 [block, block].

    Other than `fair_graph`, which is the mean over all of a block's tokens.
    """
    blocks, size = layout.num_blocks, layout.block_size
    keys = (torch.arange(blocks * size) >= n_sink).reshape(blocks, size).sum(1)
    return keys.double().expand(blocks, -1).tril() / keys.cumsum(0).clamp(min=1)[:, None]
