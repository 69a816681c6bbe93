"""eigen-synthq: eigen without a prefill: the model's usual queries, or keys, ask for each block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl
from kri_plugin_eigen.synthq_params import SynthqParams as Params

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


def _reads_calibration(params: Params) -> bool:
    return params.queries == "calibrated"


READS_CALIBRATION = _reads_calibration


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Eigenvector centrality of the stand-in block graph, [1, 1, block].

    With queries=calibrated refused without the model's calibration.
    """
    from kri_plugin_eigen.synthetic import score

    return score(cartridge, probe, params)
