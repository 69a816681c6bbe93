"""facility: keep the blocks that together stand for all others, each weighted by relevance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from kri_core import Ranking, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import BlockScores, Split


@frozen
class Params(Ranking):
    """Nothing but how scores are read."""


@hookimpl
def kri_select_blocks(
    scores: BlockScores, split: Split, features: Tensor | None, params: Params
) -> tuple[int, ...]:
    """Add the block with the largest gain in Σ_j r_j · max similarity to a kept one."""
    from kri_plugin_diverse.candidates import Candidates
    from kri_plugin_diverse.greedy import most_covering

    candidates = Candidates.of("facility", scores, split, features, params)
    return split.anchor + split.recent + most_covering(candidates)
