"""A whole document quantised: what its kept blocks' bytes could hold instead (EVAL 2).

Uniform asymmetric codes as in KIVI (arXiv 2402.02750): keys per channel over groups of tokens,
values per token. Scales and zero points are 16 bit and counted; the tail stays as it is.
"""

from __future__ import annotations

from math import ceil

import torch
from attrs import evolve
from torch import Tensor

from kri_core.substrate.hf.prefix import Prefix
from kri_core.types import Layout

BITS = (8, 4, 3, 2)  # KIVI's least is 2
GROUP = 32  # tokens that share a key channel's scale, KIVI's
STORED_BYTES = 2  # of a number in the cache as it is served, whatever dtype was baked in


def quantised(prefix: Prefix, bits: int) -> Prefix:
    """Keys and values of the blocks rounded to codes and read back in their own dtype."""
    end = len(prefix.blocks) * prefix.block_size

    def side(tensors: tuple[Tensor, ...], dim: int, size: int) -> tuple[Tensor, ...]:
        return tuple(
            torch.cat(
                [
                    *(_rounded(part, dim, bits) for part in torch.split(tensor[:, :end], size, 1)),
                    tensor[:, end:],
                ],
                dim=1,
            )
            for tensor in tensors
        )

    return evolve(
        prefix,
        keys=side(prefix.keys, 1, GROUP),
        values=side(prefix.values, 2, max(1, end)),
    )


def quantised_bytes(layout: Layout, bits: int) -> int:
    """Codes, scales and zero points of every block, and the tail."""
    tokens = layout.num_blocks * layout.block_size
    heads = layout.num_layers * layout.num_kv_heads
    codes = ceil(tokens * layout.values_per_token * bits / 8)
    scales = heads * (ceil(tokens / GROUP) * layout.head_dim + tokens)
    return codes + scales * 2 * STORED_BYTES + kept_bytes(layout, 0)


def kept_bytes(layout: Layout, blocks: int) -> int:
    """So many blocks and the tail, as served."""
    tokens = blocks * layout.block_size + len(layout.tail)
    return tokens * layout.values_per_token * STORED_BYTES


def bits_within(layout: Layout, blocks: int) -> int:
    """The most bits that need no more bytes than so many blocks; where none fit, the least."""
    allowed = kept_bytes(layout, blocks)
    return next((bits for bits in BITS if quantised_bytes(layout, bits) <= allowed), BITS[-1])


def _rounded(part: Tensor, dim: int, bits: int) -> Tensor:
    """[kv_head, token, head_dim] with one scale and zero point along `dim`."""
    if not part.numel():
        return part
    low, high = part.float().aminmax(dim=dim, keepdim=True)
    low, step = (x.half().float() for x in (low, (high - low) / (2**bits - 1)))
    codes = ((part - low) / step.where(step > 0, 1)).round().clamp(0, 2**bits - 1)
    return (low + codes * step).to(part.dtype)
