"""A cartridge and its prior seen in larger blocks, where the engine's are larger than theirs."""

from __future__ import annotations

import torch
from attrs import evolve

from kri_core.errors import ArtifactError, ConfigError
from kri_core.prior import Prior
from kri_core.types import BlockScores, Cartridge


def routing_block_size(cartridge: Cartridge, physical: int) -> int:
    """The larger of the two block sizes, which must be a multiple of the smaller."""
    own = cartridge.layout.block_size
    if max(own, physical) % min(own, physical):
        raise ConfigError(
            f"cartridge {cartridge.cart_id!r} has blocks of {own} tokens, the engine of "
            f"{physical}; start it with --block-size {own}, or build the cartridge again"
        )
    return max(own, physical)


def reblocked_cartridge(cartridge: Cartridge, block_size: int) -> Cartridge:
    """The same tokens in larger blocks, for routing only: there is no KV in it to read."""
    if block_size == cartridge.layout.block_size:
        return cartridge
    layout = evolve(cartridge.layout, block_size=block_size)
    heads = (layout.num_layers, 2, layout.num_kv_heads)
    kv_shape = (layout.num_blocks, *heads, block_size, layout.head_dim)
    tail_shape = (*heads, len(layout.tail), layout.head_dim)
    dtype = cartridge.kv.dtype
    return evolve(
        cartridge,
        layout=layout,
        kv=torch.empty(kv_shape, dtype=dtype, device="meta"),
        tail=torch.empty(tail_shape, dtype=dtype, device="meta"),
    )


def reblocked_prior(prior: Prior, cartridge: Cartridge, block_size: int) -> Prior:
    """Scores of larger blocks: the mean of their members, as one part of the KV is as good as any.

    Block lists and summaries have no such mean and are refused.
    """
    members = block_size // cartridge.layout.block_size
    if members == 1:
        return prior
    prior.check_belongs(cartridge)
    if prior.scores is None or prior.summary.keys() - {"features"}:
        raise ArtifactError(
            f"the prior holds block lists or summaries of blocks of "
            f"{cartridge.layout.block_size} tokens, which cannot be had for the engine's of "
            f"{block_size}; start it with --block-size {cartridge.layout.block_size}"
        )
    num_blocks = cartridge.layout.num_tokens // block_size
    whole = prior.scores.values[..., : num_blocks * members]
    values = whole.reshape(*whole.shape[:-1], num_blocks, members).mean(-1)
    meta = prior.meta
    if meta is not None:
        meta = evolve(meta, block_size=block_size, num_blocks=num_blocks)
    return Prior(scores=BlockScores(values), meta=meta)
