"""The Router: the one place where a stack's answers are composed and cross-checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, frozen

from kri_core.answers import check_repair, check_selection, check_split
from kri_core.config import RoutingConfig
from kri_core.prior import Prior
from kri_core.ranking import Ranking
from kri_core.registry import Registry
from kri_core.scoring import request_scores, scorer_of
from kri_core.stack import Member, Stack
from kri_core.types import BlockScores, Cartridge, Layout, Manifest, Query, RepairPlan, Split

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.probe import Probe

SELECT, SPLIT, REPAIR = "kri_select_blocks", "kri_split_blocks", "kri_plan_repair"


@frozen(eq=False)
class Router:
    """Chooses the blocks of a request by a stack of plugins."""

    stack: Stack
    registry: Registry

    @classmethod
    def from_config(cls, config: RoutingConfig, registry: Registry | None = None) -> Router:
        """Load the plugins a config names; a PluginError names the one that cannot be had."""
        registry = registry or Registry.discover()
        return cls(Stack.load(config, registry), registry)

    def route(
        self,
        cartridge: Cartridge,
        query: Query | None = None,
        prior: Prior | None = None,
        probe: Probe | None = None,
    ) -> Manifest:
        """Choose the blocks one request attends to.

        A prior answers in the scorer's place; without one, only a scorer that runs no model is
        asked. `probe` is for scorers that run the model on the question, and for selectors that
        run it on probe texts.
        """
        scorer, recorded = scorer_of(self.stack, self.registry, cartridge, prior)
        split = self._split(cartridge.layout)
        config = self.stack.config
        by_score = self._by_score(split)
        scores = None
        if self._asks_scores(split):
            scores = request_scores(self.stack, scorer, cartridge, split, query, prior, probe)
        return Manifest(
            kept=self._select(cartridge, split, scores, prior, probe),
            total_blocks=cartridge.layout.num_blocks,
            split=split,
            stack=str(evolve(config, scorer=recorded) if by_score else config),
            cart_id=cartridge.cart_id,
            prefix_hash=cartridge.prefix_hash,
            scores=None if scores is None else self._pooled(scores, split),
        )

    def asks_scores(self, layout: Layout) -> bool:
        """Whether a request needs scores: its split leaves a choice, to a selector that ranks."""
        return self._asks_scores(self._split(layout))

    def plan_repair(self, repair: Member, manifest: Manifest, deviation: Tensor) -> RepairPlan:
        """Ask one of the stack's repairs: each may measure deviation in its own way."""
        answer = repair.call(REPAIR, manifest=manifest, deviation=deviation)
        return check_repair(repair.plugin, answer, int(deviation.shape[0]))

    def _split(self, layout: Layout) -> Split:
        member, budget = self.stack.split, self.stack.config.budget
        answer = member.call(SPLIT, layout=layout, budget=budget)
        return check_split(member.plugin, answer, layout, budget)

    def _by_score(self, split: Split) -> bool:
        return split.mid_budget > 0 and self.stack.selector.takes(SELECT, "scores")

    def _asks_scores(self, split: Split) -> bool:
        return self._by_score(split) and split.mid_budget < len(split.mid)

    def _pooled(self, scores: BlockScores, split: Split) -> tuple[float, ...]:
        """The scores the selector ranks by; a plain mean for one that does not say how."""
        params = self.stack.selector.params
        ranking = params if isinstance(params, Ranking) else Ranking()
        return tuple(ranking.pooled(scores, split).tolist())

    def _select(
        self,
        cartridge: Cartridge,
        split: Split,
        scores: BlockScores | None,
        prior: Prior | None,
        probe: Probe | None,
    ) -> tuple[int, ...]:
        if split.mid_budget == len(split.mid):
            return tuple(range(cartridge.layout.num_blocks))
        if split.mid_budget == 0:
            return tuple(sorted((*split.anchor, *split.recent)))
        member = self.stack.selector
        answer = member.call(
            SELECT,
            scores=scores,
            split=split,
            features=prior.features if prior else None,
            prefix_hash=cartridge.prefix_hash,
            probe=probe,
        )
        return check_selection(member.plugin, answer, split)
