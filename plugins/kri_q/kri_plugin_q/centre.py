"""kri-q-centre: kri-q with means that keep RoPE's fast bands; a question is scored as there."""

from __future__ import annotations

from kri_core import Cartridge, Probe, Summary, centre_means, hookimpl
from kri_plugin_q.mean import Params as Params
from kri_plugin_q.mean import kri_score_query as kri_score_query


@hookimpl
def kri_summarise_blocks(cartridge: Cartridge, probe: Probe) -> Summary:
    """Mean of each block's keys, turned back to one position and then to the block's centre."""
    return {"mean": centre_means(cartridge, probe.rope)}
