"""The default selector: the mid blocks with the highest pooled scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from kri_core.hookspecs import hookimpl
from kri_core.ranking import Ranking

if TYPE_CHECKING:
    from kri_core.types import BlockScores, Split


@frozen
class Params(Ranking):
    """Nothing but how scores are read."""


@hookimpl
def kri_select_blocks(scores: BlockScores, split: Split, params: Params) -> tuple[int, ...]:
    """Order by (−score, block) and take `mid_budget`; ties go to the earlier block."""
    best = params.order(scores, split)[: split.mid_budget]
    return split.anchor + split.recent + best
