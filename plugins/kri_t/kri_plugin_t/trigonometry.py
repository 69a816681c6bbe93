"""Score a key by the RoPE logit of the query a head usually asks, averaged over where it may stand.

Source: TriAttention, arXiv 2604.04921. Before RoPE a head's queries lie around a fixed centre, so
the logit of a typical future query is a trigonometric series in its distance from the key; what of
the queries' length the centre does not explain counts with the key's length alone. Cost: one
product of the cartridge's keys with one vector per query head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from kri_core import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Calibration, Cartridge, Probe
    from kri_plugin_t.expected_query import Params

LEAST_DEVIATION = 1e-6  # a head that scores all tokens alike says nothing


def score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Float32 [layer, kv_head, block] for queries that stand after the document."""
    layout, rope, calibration = cartridge.layout, probe.rope, _calibration(cartridge, probe)
    rotated = len(rope.inv_freq)
    still = calibration.centre.shape[-1] - rotated  # pairs that the model does not rotate
    frequencies = pad(rope.inv_freq, (0, still))
    # A stored key carries the rotary scaling once, and so will the query; what is not rotated, not.
    scaling = pad(torch.full_like(rope.inv_freq, rope.scaling), (0, still), value=1.0)
    ahead = turns(frequencies, layout.num_tokens, params.max_offset)
    per_layer = []
    for layer in range(layout.num_layers):
        keys = rope.pairs(cartridge.kv[:, layer, 0].transpose(0, 1).flatten(1, 2))
        grouped = (layout.num_kv_heads, -1, len(frequencies))  # [kv_head, group, pair]
        centre = calibration.centre[layer].to(torch.complex128).reshape(grouped)
        length = calibration.length[layer].double().reshape(grouped)
        tokens = token_scores(keys, centre * scaling, length * scaling, ahead)
        per_layer.append(pool(most_interested(tokens), layout.block_size, params.pool, params.m))
    return torch.stack(per_layer).float()


def _calibration(cartridge: Cartridge, probe: Probe) -> Calibration:
    found = probe.calibration
    if found is None:
        raise ConfigError(
            "'kri-t' needs the model's calibration, and there is none; run kri-core calibrate "
            f"--model {cartridge.model.model_id} --text FILE, once, with any plain text"
        )
    return found


def turns(frequencies: Tensor, position: int, max_offset: int) -> Tensor:
    """What turns a query before RoPE to the mean of its future selves, complex [pair].

    Offsets 1, 2, 4, … to max_offset beyond `position`. The mean over them is folded into one
    factor, and turning the query on replaces turning every stored key back: both are exact.
    """
    offsets = 2.0 ** torch.arange(max_offset.bit_length(), dtype=torch.float64)
    angles = (position + offsets)[:, None] * frequencies  # [offset, pair]
    return torch.polar(torch.ones_like(angles), angles).mean(0)


def token_scores(keys: Tensor, centre: Tensor, length: Tensor, ahead: Tensor) -> Tensor:
    """Expected logit of each token, float64 [kv_head, group, token].

    keys: stored, complex [kv_head, token, pair]; centre and length: of the queries before RoPE,
    [kv_head, group, pair]; ahead: see `turns`.
    """
    concentrated = ((centre * ahead) @ keys.conj().mT).real
    spread = (length - centre.abs()) @ keys.abs().mT
    return concentrated + spread


def most_interested(scores: Tensor) -> Tensor:
    """Each query head's scores put on one scale, then the group's largest, [kv_head, token]."""
    mean = scores.mean(-1, keepdim=True)
    deviation = scores.std(-1, correction=0, keepdim=True).clamp(min=LEAST_DEVIATION)
    return ((scores - mean) / deviation).amax(1)


def pool(tokens: Tensor, block_size: int, how: str, m: int) -> Tensor:
    """[kv_head, token] → [kv_head, block]."""
    blocks = tokens.unflatten(-1, (-1, block_size))
    if how == "max":
        return blocks.amax(-1)
    if how == "lse":
        return blocks.logsumexp(-1)
    if how == "mean":
        return blocks.mean(-1)
    return blocks.topk(min(m, block_size)).values.mean(-1)
