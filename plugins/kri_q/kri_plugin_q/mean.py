"""kri-q: the question's query vectors against the mean key of each block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import Cartridge, Probe, Query, Split, Summary, hookimpl
from kri_plugin_q.asking import Asking, held, question_queries

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Params(Asking):
    """Beside how the question is read: the product, and how a group's query heads are joined."""

    similarity: Literal["dot", "cosine"] = "dot"
    pool_heads: Literal["mean", "max"] = "mean"


@hookimpl
def kri_summarise_blocks(cartridge: Cartridge) -> Summary:
    """Mean of each block's stored keys."""
    from kri_plugin_q.summaries import block_means

    return {"mean": block_means(cartridge)}


@hookimpl
def kri_score_query(
    summary: Summary, query: Query, split: Split, probe: Probe | None, params: Params
) -> Tensor:
    """⟨q, mean⟩/√d, or their cosine."""
    from kri_plugin_q.affinity import score_means

    means = held(summary, "mean")
    queries = question_queries(query, split, probe, means.shape[2], params)
    return score_means(queries, means, params.similarity, params.pool_tokens, params.pool_heads)
