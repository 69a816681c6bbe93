"""SnapKV: what the document's last queries look at, smoothed over neighbouring tokens.

Source: arXiv 2404.14469. Cost: a prefill of the window only, shared by every scorer of a bake that
watches, and the window's [q_head, token, document token] weights, one layer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import avg_pool1d, pad

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Layout, PrefillChunk


class ObservationWindow:
    """Watches the last `window` tokens: scores those before them and pins their own blocks."""

    def __init__(self, layout: Layout, window: int, kernel: int) -> None:
        self.layout, self.kernel = layout, kernel
        self.first_token = max(0, layout.num_tokens - window)
        self.earlier = min(self.first_token, layout.num_blocks * layout.block_size)
        self.sums: dict[int, Tensor] = {}  # layer → float64 [kv_head, earlier token]

    def see(self, chunk: PrefillChunk) -> None:
        """Add up the chunk's rows, mean over the query heads of each group."""
        if self.earlier == 0:
            return
        size = self.layout.block_size
        mass = chunk.token_mass(range(-(-self.earlier // size)), size).flatten(2)
        rows = mass[..., : self.earlier].sum(1, dtype=torch.float64)  # [q_head, earlier token]
        grouped = rows.reshape(self.layout.num_kv_heads, -1, self.earlier).mean(1)
        self.sums[chunk.layer] = self.sums.get(chunk.layer, 0) + grouped

    def scores(self) -> Tensor:
        """Float32 [layer, kv_head, block]: smoothed mass; blocks with window tokens at max + 1."""
        layout = self.layout
        if not self.sums:  # the window is the whole document
            return torch.ones(1, 1, layout.num_blocks)
        sums = torch.stack([self.sums[layer] for layer in sorted(self.sums)])
        means = sums / (layout.num_tokens - self.first_token)
        smooth = avg_pool1d(means, self.kernel, stride=1, padding=self.kernel // 2)
        whole = layout.num_blocks * layout.block_size
        by_block = pad(smooth, (0, whole - self.earlier)).unflatten(-1, (-1, layout.block_size))
        scores = by_block.sum(-1)  # [layer, kv_head, block]
        before = self.earlier // layout.block_size
        pinned = scores[..., :before].amax(-1, keepdim=True) + 1 if before else 1.0
        scores[..., before:] = pinned
        return scores.float()
