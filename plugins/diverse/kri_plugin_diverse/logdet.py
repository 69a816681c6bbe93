"""logdet: keep relevant blocks that span a large volume (a determinantal point process's mode)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import gt

from kri_core import Ranking, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import BlockScores, Split


@frozen
class Params(Ranking):
    """How dear redundancy is; towards 0 it is top-k. The rest says how scores are read."""

    beta: float = field(default=10.0, validator=gt(0))


@hookimpl
def kri_select_blocks(
    scores: BlockScores, split: Split, features: Tensor | None, params: Params
) -> tuple[int, ...]:
    """Add the block with the largest gain in log det(I + beta·L), L the weighted similarities."""
    from kri_plugin_diverse.candidates import Candidates
    from kri_plugin_diverse.greedy import most_voluminous

    candidates = Candidates.of("logdet", scores, split, features, params)
    return split.anchor + split.recent + most_voluminous(candidates, params.beta)
