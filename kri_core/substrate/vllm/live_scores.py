"""Scores by a stack's scorer where a cartridge has no prior: made once, not by every request.

Making them reads the whole cartridge, on the scheduler, while no request is served.
"""

from __future__ import annotations

from attrs import define, field

from kri_core.prior import Prior
from kri_core.routing import Router
from kri_core.scoring import SCORE_QUERY, bake_ranking, bake_scores, needs_probe
from kri_core.types import Cartridge

HELD = 64  # scorers and contents; of each a number per layer, KV head and block


@define(eq=False)
class LiveScores:
    """In place of priors, by scorers that need neither a model nor the question."""

    _held: dict[tuple[str, str], Prior] = field(factory=dict, init=False)  # the latest used last

    def of(self, router: Router, cartridge: Cartridge) -> Prior | None:
        """None where the stack has no such scorer, or asks for no scores."""
        scorer = router.stack.scorer
        if scorer is None or not router.asks_scores(cartridge.layout):
            return None
        if needs_probe(scorer) or scorer.answers(SCORE_QUERY):
            return None
        asked = (str(scorer.ref), cartridge.sha256)
        made = self._held.pop(asked, None)
        if made is None:
            scores = bake_scores(scorer, cartridge, None)
            made = Prior(scores=scores, blocks_per_budget=bake_ranking(scorer, cartridge, None))
        self._held[asked] = made
        if len(self._held) > HELD:
            del self._held[next(iter(self._held))]
        return made
