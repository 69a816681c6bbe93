"""A question's queries against block summaries, pooled to [layer, kv_head, block].

Everything is pooled after the product, over tokens and then over the query heads of a group: in a
mean of queries two heads that look opposite ways would cancel before a maximum could see either.
Sources: KRI-Q is knlp's, and MoBA's gate (arXiv 2502.13189) is the same product; the bound is
Quest's (arXiv 2406.10774). Cost per request and query head: a product [token, head_dim] ·
[head_dim, block]; two of them for the cumulant and for Quest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

if TYPE_CHECKING:
    from torch import Tensor

Score = Callable[..., "Tensor"]  # of queries [..., token, d] and summaries [..., block, d]
POOL: dict[str, Callable[[Tensor, int], Tensor]] = {
    "last": lambda scores, axis: scores.select(axis, -1),
    "mean": lambda scores, axis: scores.mean(axis),
    "max": lambda scores, axis: scores.amax(axis),
}


def dot(queries: Tensor, means: Tensor) -> Tensor:
    """⟨q, mean⟩/√d: the mean attention logit of a block's tokens."""
    return queries @ means.mT / math.sqrt(queries.shape[-1])


def cosine(queries: Tensor, means: Tensor) -> Tensor:
    """⟨q, mean⟩ of unit vectors: neither long keys nor long queries count for more."""
    return normalize(queries, dim=-1) @ normalize(means, dim=-1).mT


def cumulant(queries: Tensor, means: Tensor, variances: Tensor, block_size: float) -> Tensor:
    """Log B + ⟨q, mean⟩/√d + ½ Σ q² variance/d: log of a block's softmax mass, to second order.

    Channels are taken as uncorrelated.
    """
    spread = queries.square() @ variances.mT / queries.shape[-1]  # variance of the block's logits
    return math.log(block_size) + dot(queries, means) + spread / 2


def upper_bound(queries: Tensor, least: Tensor, greatest: Tensor) -> Tensor:
    """Σ_f max(q_f·least_f, q_f·greatest_f): no key of the block has a larger ⟨q, k⟩.

    A positive q_f takes the greatest value and a negative one the least, hence two products.
    """
    return queries.clamp(min=0) @ greatest.mT + queries.clamp(max=0) @ least.mT


def score_means(
    queries: Tensor, means: Tensor, similarity: str, pool_tokens: str, pool_heads: str
) -> Tensor:
    """kri-q and kri-q-centre: dot or cosine."""
    return affinity(
        cosine if similarity == "cosine" else dot, queries, (means,), pool_tokens, pool_heads
    )


def score_cumulants(
    queries: Tensor,
    means: Tensor,
    variances: Tensor,
    block_size: Tensor,
    pool_tokens: str,
    pool_heads: str,
) -> Tensor:
    """kri-q-cumulant."""
    score = partial(cumulant, block_size=float(block_size))
    return affinity(score, queries, (means, variances), pool_tokens, pool_heads)


def score_bounds(queries: Tensor, least: Tensor, greatest: Tensor, pool_tokens: str) -> Tensor:
    """quest: the maximum over a group is still a bound, its mean would not be."""
    return affinity(upper_bound, queries, (least, greatest), pool_tokens, "max")


def affinity(
    score: Score,
    queries: Tensor,
    summaries: tuple[Tensor, ...],
    pool_tokens: str,
    pool_heads: str,
) -> Tensor:
    """Float32 [layer, kv_head, block] of queries [layer, q_head, token, head_dim].

    Summaries are [layer, kv_head, block, head_dim]; layers without queries are not looked at.
    """
    per_layer = []
    for asked, *kept in zip(queries, *(part[: len(queries)] for part in summaries), strict=True):
        # In float64, rounded once: a float32 product sums its edge columns in another order, so
        # that equal blocks would not tie.
        grouped = asked.double().unflatten(0, (len(kept[0]), -1))  # query head h asks h // group
        per_token = score(grouped, *(part.double().unsqueeze(1) for part in kept))
        per_head = POOL[pool_tokens](per_token, 2)  # of [kv_head, q_head in group, token, block]
        per_layer.append(POOL[pool_heads](per_head, 1).float())
    return torch.stack(per_layer)
