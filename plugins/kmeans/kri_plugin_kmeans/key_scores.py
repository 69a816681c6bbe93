"""Scores of keys by themselves; a block has its best token's, so one key is enough.

In float64, one layer at a time: equal keys tie bit for bit, and memory stays that of one layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kri_core import Cartridge


def unlikeness(cartridge: Cartridge) -> Tensor:
    """−cos(k, mean of all unit keys of the same layer and head), [layer, kv_head, block]."""

    def per_token(keys: Tensor) -> Tensor:
        unit = normalize(keys, dim=-1)
        mean = normalize(unit.mean((0, 2), keepdim=True), dim=-1)  # [1, kv_head, 1, head_dim]
        return -(unit * mean).sum(-1)

    return _best_of_blocks(cartridge, per_token)


def shortness(cartridge: Cartridge) -> Tensor:
    """−‖k‖₂, [layer, kv_head, block]."""
    return _best_of_blocks(cartridge, lambda keys: -keys.norm(dim=-1))


def _best_of_blocks(cartridge: Cartridge, per_token: Callable[[Tensor], Tensor]) -> Tensor:
    """Largest value of each block, from keys [block, kv_head, token, head_dim] of each layer."""
    layers = range(cartridge.layout.num_layers)
    scores = [per_token(cartridge.kv[:, layer, 0].double()).amax(-1).T for layer in layers]
    return torch.stack(scores).float()
