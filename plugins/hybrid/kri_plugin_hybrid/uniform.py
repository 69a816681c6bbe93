"""Evenly spaced mid blocks: coverage without a score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Split


@hookimpl
def kri_select_blocks(split: Split) -> tuple[int, ...]:
    """Take mid block ⌊jM/K⌋ for j = 0 … K−1, with M mid blocks and K = `mid_budget`."""
    mid, wanted = split.mid, split.mid_budget
    spaced = tuple(mid[j * len(mid) // wanted] for j in range(wanted))
    return split.anchor + split.recent + spaced
