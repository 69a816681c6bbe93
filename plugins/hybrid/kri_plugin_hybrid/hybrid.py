"""Keep the head and the tail of the document, nothing between (upstream's `hybrid`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge

from kri_core import ConfigError, Split, hookimpl

if TYPE_CHECKING:
    from kri_core import Layout


@frozen
class Params:
    """Blocks at each end; the defaults are upstream's."""

    anchor: int = field(default=2, validator=ge(0))
    recent: int = field(default=6, validator=ge(0))


@hookimpl
def kri_split_blocks(layout: Layout, budget: int | None, params: Params) -> Split:
    """First `anchor` and last `recent` blocks; a budget other than their sum is refused."""
    own = params.anchor + params.recent
    if budget not in (None, own):
        raise ConfigError(
            f"'hybrid' keeps anchor + recent = {own} blocks, but the budget is {budget}; "
            "leave the budget out or make them equal"
        )
    return Split.pin(layout.num_blocks, anchor=params.anchor, recent=params.recent)
