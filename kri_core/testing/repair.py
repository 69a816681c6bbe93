"""The contract of slot `repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from hypothesis import given
from hypothesis import strategies as st

from kri_core.answers import check_repair
from kri_core.stack import Member, Stack
from kri_core.testing.contract import PluginContract, thorough
from kri_core.types import Manifest, Split

if TYPE_CHECKING:
    from torch import Tensor

REPAIR = "kri_plan_repair"
MANIFEST = Manifest((0, 2, 7), 8, Split.pin(8, anchor=1, recent=1, mid_budget=1), "", "", "")


def _deviation(num_tokens: int, seed: int = 0) -> Tensor:
    return torch.rand(num_tokens, generator=torch.Generator().manual_seed(seed))


class RepairContract(PluginContract):
    """Ascending, distinct tokens among the kept ones; the same every time."""

    stack_with: ClassVar[str] = "whole+{}"

    def member(self, stack: Stack) -> Member:
        """The repair."""
        return stack.repairs[0]

    def test_a_plan_is_ascending_tokens_among_the_kept(self) -> None:
        """For any number of kept tokens, none and one included, and for no deviation at all."""
        stack = self.load()

        @thorough
        @given(num_tokens=st.integers(0, 70), seed=st.integers(0, 1000), alike=st.booleans())
        def holds(num_tokens: int, seed: int, alike: bool) -> None:
            deviation = _deviation(num_tokens, seed)
            self._plan(stack, torch.zeros_like(deviation) if alike else deviation)

        holds()

    def test_the_same_deviation_gives_the_same_plan(self) -> None:
        """No state, no chance."""
        stack = self.load()
        for seed in range(10):
            plans = [self._plan(stack, _deviation(48, seed)) for _ in range(2)]
            assert plans[0] == plans[1]

    def test_the_deviation_is_not_changed(self) -> None:
        """The next repair of the stack is given the same one."""
        deviation = _deviation(48)
        self._plan(self.load(), deviation)
        assert deviation.equal(_deviation(48)), "it changed deviation; work on a copy"

    def _plan(self, stack: Stack, deviation: Tensor) -> tuple[int, ...]:
        repair = self.member(stack)
        answer = repair.call(REPAIR, manifest=MANIFEST, deviation=deviation)
        return check_repair(repair.plugin, answer, len(deviation)).tokens
