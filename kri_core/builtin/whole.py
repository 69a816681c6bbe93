"""The split that leaves nothing out: plain attention over the whole cartridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core.errors import ConfigError
from kri_core.hookspecs import hookimpl
from kri_core.types import Split

if TYPE_CHECKING:
    from kri_core.types import Layout


@hookimpl
def kri_split_blocks(layout: Layout, budget: int | None) -> Split:
    """Every block is an anchor; a budget below that is refused."""
    if budget is not None and budget < layout.num_blocks:
        raise ConfigError(
            f"'whole' keeps all {layout.num_blocks} blocks, but the budget is {budget}; "
            f"leave the budget out or write A0R0K{budget}"
        )
    return Split.pin(layout.num_blocks, anchor=layout.num_blocks, recent=0)
