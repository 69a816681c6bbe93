"""Keep the last blocks of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import ConfigError, Split, hookimpl

if TYPE_CHECKING:
    from kri_core import Layout


@hookimpl
def kri_split_blocks(layout: Layout, budget: int | None) -> Split:
    """Last `budget` blocks; without a budget there is nothing to go by."""
    if budget is None:
        raise ConfigError("'recency' needs a budget and got none; write recency[budget=16]")
    return Split.pin(layout.num_blocks, anchor=0, recent=budget)
