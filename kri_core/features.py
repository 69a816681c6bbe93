"""One unit vector per block, for selectors and scorers that compare blocks with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.cartridge import Cartridge
    from kri_core.rope import Rope

WIDTH = 512  # wider features are projected (seeded) to this many dimensions (ALGORITHMS 6.3)


def centre_means(cartridge: Cartridge, rope: Rope) -> Tensor:
    """Mean key of each block, turned to the block's centre; float32 [layer, kv_head, block, dim].

    Averaging stored keys as they are kills the fast bands, for sixteen positions turn them in
    sixteen directions; so each key is turned back to position 0 first (ALGORITHMS 4.1).
    """
    import torch

    layout = cartridge.layout
    size = layout.block_size
    tokens = torch.arange(layout.num_blocks * size)
    centres = torch.arange(layout.num_blocks) * size + (size - 1) / 2
    means = []
    for layer in range(layout.num_layers):  # one layer at a time bounds the memory
        keys = cartridge.kv[:, layer, 0].transpose(0, 1).flatten(1, 2).float()
        plain = rope.turn(keys, -tokens)  # [kv_head, token, head_dim]
        mean = plain.reshape(len(plain), layout.num_blocks, size, -1).mean(2)
        means.append(rope.turn(mean, centres))
    return torch.stack(means)


def block_features(means: Tensor) -> Tensor:
    """Unit vectors float32 [block, dim] from block means [layer, kv_head, block, dim].

    Each layer and head counts alike: their means are normalised before they are joined.
    """
    import torch
    from torch.nn.functional import normalize

    joined = normalize(means.float(), dim=-1).permute(2, 0, 1, 3).flatten(1)  # [block, features]
    if joined.shape[1] > WIDTH:
        draw = torch.Generator().manual_seed(0)
        joined = joined @ torch.randn(joined.shape[1], WIDTH, generator=draw)
    return normalize(joined, dim=-1)
