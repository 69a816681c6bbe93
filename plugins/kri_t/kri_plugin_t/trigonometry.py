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

    from kri_core import Calibration, Cartridge, Probe, Rope
    from kri_plugin_t.expected_query import Params

LEAST_DEVIATION = 1e-6  # a head that scores all tokens alike says nothing


def score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Float32 [layer, kv_head, block] for queries that stand after the document."""
    layout, calibration = cartridge.layout, calibration_of(cartridge, probe, "kri-t")
    every = torch.arange(layout.num_blocks * layout.block_size)
    per_layer = [
        score_layer(
            cartridge.kv[:, layer, 0].transpose(0, 1),
            calibration.centre[layer].to(torch.complex128),
            calibration.length[layer].double(),
            probe.rope,
            layout.num_tokens,
            every,
            params,
        )
        for layer in range(layout.num_layers)
    ]
    return torch.stack(per_layer)


def calibration_of(cartridge: Cartridge, probe: Probe, scorer: str) -> Calibration:
    """The model's; refused where there is none."""
    found = probe.calibration
    if found is None:
        raise ConfigError(
            f"{scorer!r} needs the model's calibration, and there is none; run kri-core calibrate "
            f"--model {cartridge.model.model_id} --text FILE, once, with any plain text"
        )
    return found


def score_layer(
    keys: Tensor,
    centre: Tensor,
    length: Tensor,
    rope: Rope,
    position: int,
    counted: Tensor,
    params: Params,
) -> Tensor:
    """One layer's blocks for queries that stand after `position`, float32 [kv_head, block].

    keys: stored, [kv_head, block, token, head_dim]; centre and length: of the queries before RoPE,
    [q_head, pair]; counted: see `most_interested`.
    """
    still = centre.shape[-1] - len(rope.inv_freq)  # pairs that the model does not rotate
    frequencies = pad(rope.inv_freq, (0, still))
    # A stored key carries the rotary scaling once, and so will the query; what is not rotated, not.
    scaling = pad(torch.full_like(rope.inv_freq, rope.scaling), (0, still), value=1.0)
    centre, length = (
        (part * scaling).unflatten(0, (len(keys), -1)) for part in (centre, length)
    )  # [kv_head, group, pair]
    ahead = turns(frequencies, position, params.max_offset)
    tokens = token_scores(rope.pairs(keys.flatten(1, 2)), centre, length, ahead)
    blocks = pool(most_interested(tokens, counted), keys.shape[2], params.pool, params.m)
    return blocks.float()


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


def most_interested(scores: Tensor, counted: Tensor) -> Tensor:
    """Each query head's scores put on one scale, then the group's largest, [kv_head, token].

    counted: the tokens that mean and deviation are taken over.
    """
    among = scores[..., counted]
    mean = among.mean(-1, keepdim=True)
    deviation = among.std(-1, correction=0, keepdim=True).clamp(min=LEAST_DEVIATION)
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
