"""The default selector: the mid blocks with the highest pooled scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from kri_core.types import BlockScores, Split


@hookimpl
def kri_select_blocks(scores: BlockScores, split: Split) -> tuple[int, ...]:
    """Order by (−score, block) and take `mid_budget`; ties go to the earlier block."""
    # Sorted here: torch.topk is not stable, and a CUDA sort may put −0.0 below 0.0.
    pooled = scores.pooled().tolist()
    ranked = sorted(split.mid, key=lambda block: (-pooled[block], block))
    return split.anchor + split.recent + tuple(ranked[: split.mid_budget])
