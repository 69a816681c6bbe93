"""The contract of slot `scorer`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch

from kri_core.answers import check_scores
from kri_core.scoring import SCORE_QUERY, bake_ranking, bake_scores, bake_summary
from kri_core.stack import Member, Stack
from kri_core.testing.contract import REFUSALS, PluginContract
from kri_core.testing.fake_model import FakeModel
from kri_core.testing.fake_probe import FakeProbe
from kri_core.types import Query, Split, Summary
from kri_core.watching import watch_prefill

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.probe import Probe
    from kri_core.types import Cartridge

QUESTION = Query((4, 1, 17, 6))
CARTRIDGES = {  # tokens and dtype; blocks hold 4 tokens
    "six blocks and a tail": (26, torch.float32),
    "one block": (4, torch.float32),
    "bfloat16": (24, torch.bfloat16),
}
every_cartridge = pytest.mark.parametrize("kind", CARTRIDGES)


class ScorerContract(PluginContract):
    """Finite float32 scores for every block, the same every time, with nothing changed."""

    stack_with: ClassVar[str] = "whole({})"

    def member(self, stack: Stack) -> Member:
        """The scorer."""
        assert stack.scorer is not None
        return stack.scorer

    @every_cartridge
    def test_scores_are_finite_float32_for_every_block(self, kind: str) -> None:
        """[layer or 1, kv_head or 1, block]; the Router refuses anything else."""
        cartridge, probe = self._document(kind)
        for scores in self._answers(cartridge, probe):
            if scores.is_floating_point():
                assert scores.shape[-1] == cartridge.layout.num_blocks

    def test_the_same_inputs_give_the_same_scores_bit_for_bit(self) -> None:
        """Whatever the state of torch's global generator."""
        answers = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            answers.append(self._answers(*self._document("six blocks and a tail")))
        for first, second in zip(*answers, strict=True):
            assert first.equal(second), "two runs on equal inputs gave different scores"

    @every_cartridge
    def test_the_cartridge_is_not_changed(self, kind: str) -> None:
        """Its tensors are mapped from a file that others read."""
        (cartridge, probe), (untouched, _) = self._document(kind), self._document(kind)
        self._answers(cartridge, probe)
        assert cartridge.kv.equal(untouched.kv), "it changed cartridge.kv; work on a copy"
        assert cartridge.tail.equal(untouched.tail), "it changed cartridge.tail; work on a copy"

    def test_features_in_a_summary_are_unit_vectors(self) -> None:
        """`summary.features` is what diversity selectors compare blocks by."""
        stack = self.load()
        cartridge, probe = self._document("six blocks and a tail")
        features = bake_summary(self.member(stack), cartridge, probe).get("features")
        if features is None:
            pytest.skip(f"{self.plugin} keeps no features")
        assert features.shape[:-1] == (6,)
        assert (features.float().norm(dim=-1) - 1).abs().max() < 1e-3

    def test_a_question_without_a_model_is_scored_or_refused(self) -> None:
        """At serve time there may be no probe."""
        stack = self.load()
        if not self.member(stack).answers(SCORE_QUERY):
            pytest.skip(f"{self.plugin} scores no questions")
        cartridge, probe = self._document("six blocks and a tail")
        summary = bake_summary(self.member(stack), cartridge, probe)
        with contextlib.suppress(*REFUSALS):
            self._score_question(stack, cartridge, summary, None)

    def test_a_question_does_not_change_the_summary(self) -> None:
        """It is the prior's, and the next question's."""
        stack = self.load()
        if not self.member(stack).answers(SCORE_QUERY):
            pytest.skip(f"{self.plugin} scores no questions")
        cartridge, probe = self._document("six blocks and a tail")
        summary = bake_summary(self.member(stack), cartridge, probe)
        untouched = {name: tensor.clone() for name, tensor in summary.items()}
        self._score_question(stack, cartridge, summary, probe)
        assert summary.keys() == untouched.keys(), "it changed the summary's names"
        for name, tensor in untouched.items():
            assert summary[name].equal(tensor), f"it changed summary[{name!r}]; work on a copy"

    def document(self, num_tokens: int, dtype: torch.dtype) -> tuple[Cartridge, Probe]:
        """A fresh cartridge of blocks of 4 tokens and a probe on it, equal for equal arguments.

        To be overridden only by a scorer that takes `probe.native_model`, with a small one.
        """
        model = FakeModel.random()
        cartridge = model.cartridge([7 * t % 64 for t in range(num_tokens)], dtype=dtype)
        return cartridge, FakeProbe(model, cartridge)

    def _document(self, kind: str) -> tuple[Cartridge, Probe]:
        return self.document(*CARTRIDGES[kind])

    def _answers(self, cartridge: Cartridge, probe: Probe) -> list[Tensor]:
        """Every score the plugin gives, in whichever form; a ranking as a tensor of block ids."""
        stack = self.load()
        scorer = self.member(stack)
        watched = watch_prefill([scorer], cartridge, probe)
        offline = bake_scores(scorer, cartridge, probe, watched)
        answers = [] if offline is None else [offline.values]
        for blocks in bake_ranking(scorer, cartridge, probe).values():
            answers.append(torch.tensor(blocks))
        if scorer.answers(SCORE_QUERY):
            summary = bake_summary(scorer, cartridge, probe)
            answers.append(self._score_question(stack, cartridge, summary, probe))
        return answers

    def _score_question(
        self, stack: Stack, cartridge: Cartridge, summary: Summary, probe: Probe | None
    ) -> Tensor:
        scorer = self.member(stack)
        split = Split.pin(cartridge.layout.num_blocks, anchor=1, recent=0)
        values = scorer.call(SCORE_QUERY, summary=summary, query=QUESTION, split=split, probe=probe)
        return check_scores(scorer.plugin, values, cartridge.layout).values
