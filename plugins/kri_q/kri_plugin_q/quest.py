"""quest: the largest logit any key of a block could have, from its keys' minima and maxima."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import Cartridge, Probe, Query, Split, Summary, hookimpl
from kri_plugin_q.asking import Asking as Params
from kri_plugin_q.asking import held, question_queries

if TYPE_CHECKING:
    from torch import Tensor


@hookimpl
def kri_summarise_blocks(cartridge: Cartridge) -> Summary:
    """Least and greatest value of each channel over each block's stored keys."""
    from kri_plugin_q.summaries import block_bounds

    least, greatest = block_bounds(cartridge)
    return {"least": least, "greatest": greatest}


@hookimpl
def kri_score_query(
    summary: Summary, query: Query, split: Split, probe: Probe | None, params: Params
) -> Tensor:
    """Quest's bound on ⟨q, key⟩, the maximum over a group's query heads."""
    from kri_plugin_q.affinity import score_bounds

    least, greatest = held(summary, "least"), held(summary, "greatest")
    queries = question_queries(query, split, probe, least.shape[2], params)
    return score_bounds(queries, least, greatest, params.pool_tokens)
