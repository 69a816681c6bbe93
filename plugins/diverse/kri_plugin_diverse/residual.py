"""residual: what a kept block says is taken out of the question before the next is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge, le

from kri_core import Ranking, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import BlockScores, Split


@frozen
class Params(Ranking):
    """How much of the projection is taken off; 0 is top-k. The rest says how scores are read."""

    alpha: float = field(default=0.5, validator=[ge(0), le(1)])


@hookimpl
def kri_select_blocks(
    scores: BlockScores, split: Split, features: Tensor | None, params: Params
) -> tuple[int, ...]:
    """Add the most relevant block, then lower r_b by alpha·r_chosen·cos(b, chosen)."""
    from kri_plugin_diverse.candidates import Candidates
    from kri_plugin_diverse.greedy import most_residual

    candidates = Candidates.of("residual", scores, split, features, params)
    return split.anchor + split.recent + most_residual(candidates, params.alpha)
