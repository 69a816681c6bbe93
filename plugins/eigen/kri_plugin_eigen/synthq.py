"""eigen-synthq: eigen, with attention guessed from keys: for cartridges that have no prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import gt

from kri_core import hookimpl
from kri_plugin_eigen.eigen import Params as EigenParams

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@frozen
class Params(EigenParams):
    """And how sharply a block's mean key attends to the keys before it: see README."""

    temperature: float = field(default=0.1, validator=gt(0))  # ALGORITHMS 7.4


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Eigenvector centrality of the stand-in block graph, [1, 1, block]."""
    from kri_plugin_eigen.synthetic import score

    return score(cartridge, probe.rope, params)
