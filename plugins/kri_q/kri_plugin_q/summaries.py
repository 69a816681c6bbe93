"""What is kept of each block's stored keys; every part is [layer, kv_head, block, head_dim]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge


def block_means(cartridge: Cartridge) -> Tensor:
    """Mean of a block's post-RoPE keys, float32."""
    return _per_layer(cartridge, lambda keys: keys.double().mean(2).float())


def block_moments(cartridge: Cartridge) -> dict[str, Tensor]:
    """The mean, each channel's variance over a block's keys (0 for one key), and their number."""
    variance = _per_layer(cartridge, lambda keys: keys.double().var(2, correction=0).float())
    size = torch.tensor(cartridge.layout.block_size)
    return {"mean": block_means(cartridge), "variance": variance, "block_size": size}


def block_bounds(cartridge: Cartridge) -> tuple[Tensor, Tensor]:
    """Each channel's least and greatest value over a block's keys, in the keys' dtype: exact."""
    least = _per_layer(cartridge, lambda keys: keys.amin(2))
    return least, _per_layer(cartridge, lambda keys: keys.amax(2))


def _per_layer(cartridge: Cartridge, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduce [block, kv_head, token, head_dim] over tokens, a layer at a time to bound memory."""
    layers = (reduce(cartridge.kv[:, layer, 0]) for layer in range(cartridge.layout.num_layers))
    return torch.stack([reduced.transpose(0, 1) for reduced in layers])
