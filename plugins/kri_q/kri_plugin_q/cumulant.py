"""kri-q-cumulant: the softmax mass a block would draw, from its keys' mean and variance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import Cartridge, Probe, Query, Split, Summary, hookimpl
from kri_plugin_q.asking import Asking, held, question_queries

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Params(Asking):
    """Beside how the question is read: how a group's query heads are joined."""

    pool_heads: Literal["mean", "max"] = "mean"


@hookimpl
def kri_summarise_blocks(cartridge: Cartridge) -> Summary:
    """Mean and variance of each block's stored keys, and their number."""
    from kri_plugin_q.summaries import block_moments

    return block_moments(cartridge)


@hookimpl
def kri_score_query(
    summary: Summary, query: Query, split: Split, probe: Probe | None, params: Params
) -> Tensor:
    """Log B + ⟨q, mean⟩/√d + ½ Σ q² variance/d."""
    from kri_plugin_q.affinity import score_cumulants

    parts = [held(summary, name) for name in ("mean", "variance", "block_size")]
    queries = question_queries(query, split, probe, parts[0].shape[2], params)
    return score_cumulants(queries, *parts, params.pool_tokens, params.pool_heads)
