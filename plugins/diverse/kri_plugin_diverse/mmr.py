"""mmr: relevance minus the nearest similarity to what is kept already (Carbonell, SIGIR 1998)."""

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
    """How much relevance counts against novelty; 1 is top-k. The rest says how scores are read."""

    weight: float = field(default=0.7, validator=[ge(0), le(1)])


@hookimpl
def kri_select_blocks(
    scores: BlockScores, split: Split, features: Tensor | None, params: Params
) -> tuple[int, ...]:
    """Add the block with the largest weight·r − (1 − weight)·max similarity, one at a time."""
    from kri_plugin_diverse.candidates import Candidates
    from kri_plugin_diverse.greedy import most_marginally_relevant

    candidates = Candidates.of("mmr", scores, split, features, params)
    return split.anchor + split.recent + most_marginally_relevant(candidates, params.weight)
