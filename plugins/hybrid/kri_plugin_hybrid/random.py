"""Random scores: the null hypothesis of every scorer, under any split and selector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge


@frozen
class Params:
    """Another seed, another order."""

    seed: int = field(default=0, validator=ge(0))


@hookimpl
def kri_score_blocks(cartridge: Cartridge, params: Params) -> Tensor:
    """Score every block by its place in a random order of this cartridge and seed."""
    from kri_plugin_hybrid.draws import random_scores

    return random_scores(cartridge.layout.num_blocks, params.seed, cartridge.prefix_hash)
