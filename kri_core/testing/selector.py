"""The contract of slot `selector`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from kri_core.answers import check_selection
from kri_core.probe import ProbeText
from kri_core.stack import Member, Stack
from kri_core.testing.contract import REFUSALS, PluginContract, thorough
from kri_core.testing.fake_model import FakeModel, cartridge_of
from kri_core.testing.fake_probe import FakeProbe
from kri_core.types import BlockScores, Split

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.types import Cartridge

SELECT = "kri_select_blocks"
MODEL = FakeModel.random(num_layers=1)
TEXTS = (ProbeText("it", (5, 9)),)
MOST_MID = 40
MOST_RUN = 8  # mid blocks, where a selector may run the model for each of them, again and again


@frozen(eq=False)
class _Case:
    """What a selector is given; more mid blocks than it may keep."""

    split: Split
    scores: Tensor  # [layer, kv_head, block]
    features: Tensor  # [block, dim]
    cartridge: Cartridge

    def select(
        self, stack: Stack, *, with_features: bool = True, with_probe: bool = True
    ) -> tuple[int, ...]:
        answer = stack.selector.call(
            SELECT,
            scores=BlockScores(self.scores),
            split=self.split,
            features=self.features if with_features else None,
            prefix_hash="a document",
            probe=FakeProbe(MODEL, self.cartridge, TEXTS) if with_probe else None,
        )
        return check_selection(stack.selector.plugin, answer, self.split)


def _case(anchor: int, recent: int, num_mid: int, mid_budget: int, seed: int = 0) -> _Case:
    num_blocks = anchor + num_mid + recent
    split = Split.pin(num_blocks, anchor=anchor, recent=recent, mid_budget=mid_budget)
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, 2, num_blocks, generator=draw)
    features = torch.nn.functional.normalize(torch.randn(num_blocks, 6, generator=draw))
    kv = torch.randn(1, 2, 2, num_blocks, 8, generator=draw)  # one token a block
    return _Case(split, scores, features, _cartridge(kv))


def _cartridge(kv: Tensor) -> Cartridge:
    num_blocks = kv.shape[3]
    return cartridge_of(MODEL.layout(1, num_blocks), kv, range(num_blocks))


@st.composite
def _cases(draw: st.DrawFn, most_mid: int) -> _Case:
    anchor, recent, seed = (draw(st.integers(0, most)) for most in (4, 4, 1000))
    num_mid = draw(st.integers(2, most_mid))
    return _case(anchor, recent, num_mid, draw(st.integers(1, num_mid - 1)), seed)


class SelectorContract(PluginContract):
    """The pins and exactly `mid_budget` of mid (at most, if it stops early); ties go first."""

    stack_with: ClassVar[str] = "A0R0K0(~{})"

    def member(self, stack: Stack) -> Member:
        """The selector."""
        return stack.selector

    def test_pins_are_kept_and_the_budget_is_filled(self) -> None:
        """Over number of blocks, pins, budget and scores."""
        stack = self.load()
        runs = self.member(stack).takes(SELECT, "probe")

        @thorough
        @given(case=_cases(MOST_RUN if runs else MOST_MID))
        def holds(case: _Case) -> None:
            case.select(stack)

        holds()

    def test_the_same_inputs_give_the_same_blocks(self) -> None:
        """No state, no chance that the inputs do not decide."""
        stack = self.load()
        for seed in range(2 if self.member(stack).takes(SELECT, "probe") else 10):
            case = _case(1, 2, 30, 6, seed)
            assert case.select(stack) == case.select(stack)

    def test_nothing_it_is_given_changes(self) -> None:
        """Scores and features belong to the prior."""
        case, untouched = _case(1, 2, 12, 4), _case(1, 2, 12, 4)
        case.select(self.load())
        assert case.scores.equal(untouched.scores), "it changed scores; work on a copy"
        assert case.features.equal(untouched.features), "it changed features; work on a copy"

    @pytest.mark.parametrize("zeros", ["0.0", "-0.0", "both"])
    def test_ties_go_to_the_earlier_block(self, zeros: str) -> None:
        """All blocks alike: the first of mid win. −0.0 is 0.0."""
        stack = self.load()
        if not any(self.member(stack).takes(SELECT, what) for what in ("scores", "probe")):
            pytest.skip(f"{self.plugin} takes no scores and runs no model")
        case = evolve(_case(2, 1, 40, 5), cartridge=_cartridge(torch.ones(1, 2, 2, 43, 8)))
        case.scores.fill_(0.0 if zeros == "0.0" else -0.0)
        if zeros == "both":
            case.scores[..., 1::2] = 0.0
        case.features[:] = case.features[0].clone()
        kept = [block for block in case.select(stack) if block in case.split.mid]
        assert kept == list(range(2, 2 + len(kept)))

    def test_without_features_it_answers_or_says_what_it_needs(self) -> None:
        """A prior may have none."""
        stack = self.load()
        if not self.member(stack).takes(SELECT, "features"):
            pytest.skip(f"{self.plugin} takes no features")
        case = _case(1, 2, 12, 4)
        with contextlib.suppress(*REFUSALS):
            case.select(stack, with_features=False)

    def test_without_a_model_it_answers_or_says_what_it_needs(self) -> None:
        """A request may come without one."""
        stack = self.load()
        if not self.member(stack).takes(SELECT, "probe"):
            pytest.skip(f"{self.plugin} runs no model")
        case = _case(1, 2, 12, 4)
        with contextlib.suppress(*REFUSALS):
            case.select(stack, with_probe=False)
