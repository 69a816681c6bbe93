"""Random mid blocks, none of them near the pins: upstream's control arm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Split


@frozen
class Params:
    """How many of the first and last mid blocks are drawn only if the others do not suffice."""

    anchor: int = field(default=0, validator=ge(0))
    recent: int = field(default=0, validator=ge(0))
    seed: int = field(default=0, validator=ge(0))


@hookimpl
def kri_select_blocks(split: Split, prefix_hash: str, params: Params) -> tuple[int, ...]:
    """Draw `mid_budget` mid blocks uniformly, without replacement."""
    from kri_plugin_hybrid.draws import draw_middle, generator

    rng = generator(params.seed, prefix_hash)
    drawn = draw_middle(rng, split.mid, split.mid_budget, params.anchor, params.recent)
    return split.anchor + split.recent + drawn
