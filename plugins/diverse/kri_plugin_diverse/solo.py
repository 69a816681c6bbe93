"""solo: what does each block add to the pins on its own, by KL(all blocks ‖ visible blocks)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Probe, Split


@hookimpl
def kri_select_blocks(split: Split, probe: Probe | None) -> tuple[int, ...]:
    """Keep the blocks that bring the probe texts' distributions nearest to the full ones, alone."""
    from kri_plugin_diverse.solo_gain import most_telling_alone

    return split.anchor + split.recent + most_telling_alone(probe, split)
