"""Spherical k-means over blocks, from nothing but their cosines (ALGORITHMS 6.1).

A sum of unit vectors has known cosines with all blocks once the blocks' own cosines are known, so
an iteration costs O(N²) additions whatever the width and the number of clusters. Everything is
float64 and is rounded to float32 where it is compared: equal blocks tie, and ties go to the
earlier block or cluster, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

ITERATIONS = 50
ZERO = 1e-12  # a centre shorter than its root is no direction: opposite blocks cancelled


def representatives(features: Tensor, budgets: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each budget K as many distinct blocks, largest cluster first; features [block, dim]."""
    unit = normalize(features.double(), dim=-1)
    cosines = unit @ unit.T
    seeds = farthest_first(cosines, max(budgets))
    return {budget: _ranked(*cluster(cosines, seeds[:budget])) for budget in budgets}


def farthest_first(cosines: Tensor, count: int) -> list[int]:
    """The block nearest the mean of all, then each time the one least like those before."""
    seeds = [int(cosines.mean(0).float().argmax())]
    nearest = cosines[seeds[0]].clone()  # [block], cosine to the nearest seed
    while len(seeds) < count:
        nearest[seeds[-1]] = torch.inf  # taken, even where a double of it remains
        seeds.append(int(nearest.float().argmin()))
        nearest = nearest.maximum(cosines[seeds[-1]])
    return seeds


def cluster(cosines: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Each block's cluster [block], none of them empty, and cosines [cluster, block] to centres."""
    blocks = torch.arange(len(cosines))
    to_centre, before = cosines[list(seeds)], None
    for _ in range(ITERATIONS):
        assigned = _without_empty(to_centre.float())
        if before is not None and assigned.equal(before):
            break
        before = assigned
        sums = torch.zeros_like(to_centre).index_add_(0, assigned, cosines)
        squared = sums.new_zeros(len(seeds)).index_add_(0, assigned, sums[assigned, blocks])
        to_centre = sums / squared.clamp(min=ZERO).sqrt()[:, None]
    return assigned, to_centre


def _without_empty(to_centre: Tensor) -> Tensor:
    """The nearest centre of each block; an empty cluster takes the worst-explained block."""
    own, assigned = to_centre.amax(0), to_centre.argmax(0)
    sizes = assigned.bincount(minlength=len(to_centre))
    for empty in (sizes == 0).nonzero().flatten().tolist():
        alone = sizes[assigned] == 1
        worst = int(own.masked_fill(alone, torch.inf).argmin())
        sizes[assigned[worst]] -= 1
        assigned[worst], sizes[empty] = empty, 1
    return assigned


def _ranked(assigned: Tensor, to_centre: Tensor) -> tuple[int, ...]:
    """Each cluster's nearest block; by size, then tightness, then block id."""
    ranked = []
    for number, row in enumerate(to_centre.float()):
        members = (assigned == number).nonzero().flatten()
        near = row[members]
        best = int(members[near.argmax()])
        ranked.append((-len(members), -float(near.double().mean().float()), best))
    return tuple(block for _, _, block in sorted(ranked))
