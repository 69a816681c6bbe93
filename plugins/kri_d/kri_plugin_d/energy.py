"""kri-energy: how long are the sums of a block's keys and values.

Upstream also calls it KRI-D-sum and kv-sum, but nothing is left out: it is not KRI-D, asks no
model, and scored 0.00 in upstream's own test, below random's 0.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge


@hookimpl
def kri_score_blocks(cartridge: Cartridge) -> Tensor:
    """‖Σ_t K_t‖ + ‖Σ_t V_t‖ over each block's tokens, [layer, kv_head, block]."""
    import torch

    sums = cartridge.kv.sum(-2, dtype=torch.float32)  # [block, layer, 2, kv_head, head_dim]
    return sums.norm(dim=-1).sum(2).permute(1, 2, 0)
