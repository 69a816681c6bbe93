"""The split behind `A<anchor>R<recent>K<mid>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge

from kri_core.hookspecs import hookimpl
from kri_core.types import Split

if TYPE_CHECKING:
    from kri_core.types import Layout


@frozen
class Params:
    """The three numbers of the tag, in blocks."""

    anchor: int = field(validator=ge(0))
    recent: int = field(validator=ge(0))
    mid: int = field(validator=ge(0))


@hookimpl
def kri_split_blocks(layout: Layout, params: Params) -> Split:
    """First `anchor` and last `recent` blocks; up to `mid` of the others may follow by score."""
    return Split.pin(
        layout.num_blocks, anchor=params.anchor, recent=params.recent, mid_budget=params.mid
    )
