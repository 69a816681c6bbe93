"""Random draws that a cartridge and a seed decide, in every process and on every machine.

NumPy's PCG64 keeps its stream across versions; torch's generators differ between devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def generator(seed: int, prefix_hash: str) -> np.random.Generator:
    """PCG64(seed ⊕ crc32(prefix_hash)), so that two cartridges do not share their draws."""
    return np.random.Generator(np.random.PCG64(seed ^ crc32(prefix_hash.encode())))


def random_scores(num_blocks: int, seed: int, prefix_hash: str) -> Tensor:
    """Float32 [1, 1, block]: a permutation of 0 … N−1, so no two blocks tie."""
    import torch

    order = generator(seed, prefix_hash).permutation(num_blocks)
    return torch.from_numpy(order).float().view(1, 1, num_blocks)


def draw_middle(
    rng: np.random.Generator, mid: tuple[int, ...], wanted: int, anchor: int, recent: int
) -> tuple[int, ...]:
    """Draw from mid without its first `anchor` and last `recent`; from those, what is missing."""
    inner = mid[anchor : max(anchor, len(mid) - recent)]
    outer = tuple(sorted(set(mid) - set(inner)))
    drawn = [*rng.permutation(inner)[:wanted], *rng.permutation(outer)]
    return tuple(int(block) for block in drawn[:wanted])
