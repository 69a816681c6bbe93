"""The contract of slot `split`."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from kri_core.answers import check_split
from kri_core.stack import Member, Stack
from kri_core.testing.contract import PluginContract, thorough
from kri_core.types import Layout, Split

SPLIT = "kri_split_blocks"


def _split(stack: Stack, num_blocks: int) -> Split:
    layout = Layout(
        num_layers=2, num_kv_heads=2, head_dim=8, block_size=4, num_tokens=4 * num_blocks + 1
    )
    budget = stack.config.budget
    answer = stack.split.call(SPLIT, layout=layout, budget=budget)
    return check_split(stack.split.plugin, answer, layout, budget)


class SplitContract(PluginContract):
    """Disjoint, ascending, together all blocks, within the budget; the same every time."""

    stack_with: ClassVar[str] = "{}"

    def member(self, stack: Stack) -> Member:
        """The split."""
        return stack.split

    def test_every_block_is_in_one_part_and_the_budget_is_kept(self) -> None:
        """For any number of blocks, none included."""
        stack = self.load()

        @thorough
        @given(num_blocks=st.integers(0, 300))
        def holds(num_blocks: int) -> None:
            _split(stack, num_blocks)

        holds()

    def test_the_same_layout_gives_the_same_split(self) -> None:
        """No state, no chance."""
        stack = self.load()
        for num_blocks in (0, 1, 7, 128):
            assert _split(stack, num_blocks) == _split(stack, num_blocks)
