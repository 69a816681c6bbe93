"""kri-t-q: kri-t, with the typical query drawn towards the question's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import Cartridge, Probe, Query, Split, Summary, hookimpl
from kri_plugin_t.blend_params import BlendParams as Params

if TYPE_CHECKING:
    from torch import Tensor

READS_CALIBRATION = True


@hookimpl
def kri_summarise_blocks(cartridge: Cartridge, probe: Probe) -> Summary:
    """Every stored key, and the model's calibration as it is now; refused without one."""
    from kri_plugin_t.blending import summarise

    return summarise(cartridge, probe, first_layer=0)


@hookimpl
def kri_score_query(
    summary: Summary, query: Query, split: Split, probe: Probe | None, params: Params
) -> Tensor:
    """As kri-t, for queries of which `blend` are the question's; z-scored over mid's tokens."""
    from kri_plugin_t.blending import score

    return score(summary, query, split, probe, params)
