"""kri-t-q-late: kri-t-q by the second half of the layers, with half the prior."""

from __future__ import annotations

from kri_core import Cartridge, Probe, Summary, hookimpl
from kri_plugin_t.asked_query import kri_score_query as kri_score_query
from kri_plugin_t.blend_params import LateBlendParams as Params

__all__ = ["Params", "kri_score_query"]
READS_CALIBRATION = True


@hookimpl
def kri_summarise_blocks(cartridge: Cartridge, probe: Probe) -> Summary:
    """The late layers' keys, and the model's calibration as it is now; refused without one."""
    from kri_plugin_t.blending import summarise

    return summarise(cartridge, probe, first_layer=cartridge.layout.num_layers // 2)
