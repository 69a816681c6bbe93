"""kri-d-greedy: add the block that most reduces KL(all blocks ‖ kept blocks) on the probe texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Probe, Split


@frozen
class Params:
    """Which way the KL is taken; reverse is KL(kept ‖ all), upstream's."""

    direction: Literal["forward", "reverse"] = "forward"


@hookimpl
def kri_select_blocks(split: Split, probe: Probe | None, params: Params) -> tuple[int, ...]:
    """From the pins, one block at a time; the budget is filled even where no block helps."""
    from kri_plugin_d.greedy_forward import most_agreeing

    return split.anchor + split.recent + most_agreeing(probe, split, params.direction)
