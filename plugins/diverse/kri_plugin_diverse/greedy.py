"""The four ways to add one block at a time (ALGORITHMS 11.B); pins are in the set from the start.

With N blocks of dim d and K chosen ones, pins included: mmr and residual O(K·N·d); facility
O(N²·d) once and lazily evaluated gains of O(N) each, N·K of them at worst; logdet O(K·N·d) and an
incremental Cholesky factor, O(N·K²) (Chen et al., arXiv 1709.05135).
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from kri_plugin_diverse.candidates import Candidates


def most_marginally_relevant(candidates: Candidates, weight: float) -> tuple[int, ...]:
    """Mid blocks in the order chosen by weight·r − (1 − weight)·max similarity; cosines ≥ 0."""
    nearest = torch.zeros_like(candidates.relevance)  # [block], to what is kept
    for block in candidates.pinned:
        nearest = nearest.maximum(candidates.cosines(block))
    chosen: list[int] = []
    while len(chosen) < candidates.wanted:
        values = weight * candidates.relevance - (1 - weight) * nearest
        chosen.append(candidates.best(values, chosen))
        nearest = nearest.maximum(candidates.cosines(chosen[-1]))
    return tuple(chosen)


def most_covering(candidates: Candidates) -> tuple[int, ...]:
    """Mid blocks in the order chosen by their gain in Σ_j r_j · max similarity of j to a kept one.

    Gains only shrink as blocks are added (submodularity), so a gain computed before is a bound:
    only the block with the largest bound is computed again (Minoux, 1978).
    """
    similarity = candidates.all_cosines().clamp_(min=0)
    covered = torch.zeros_like(candidates.relevance)  # [block]
    for block in candidates.pinned:
        covered = covered.maximum(similarity[block])
    relevance = candidates.relevance
    heap = [(-_gain(similarity[b], covered, relevance), b) for b in candidates.mid]
    heapq.heapify(heap)
    chosen: list[int] = []
    while len(chosen) < candidates.wanted:
        _, block = heapq.heappop(heap)
        gain = _gain(similarity[block], covered, relevance)
        if heap and heap[0] < (-gain, block):
            heapq.heappush(heap, (-gain, block))
        else:
            chosen.append(block)
            covered = covered.maximum(similarity[block])
    return tuple(chosen)


def most_voluminous(candidates: Candidates, beta: float) -> tuple[int, ...]:
    """Mid blocks in the order chosen by their gain in log det(I + beta·L) over the kept ones.

    L = diag(√r)·XXᵀ·diag(√r). `spare` is each block's pivot given the kept ones: its gain is the
    pivot's logarithm.
    """
    root = (beta * candidates.relevance).sqrt()
    spare = 1 + beta * candidates.relevance  # [block]
    factor = torch.zeros(0, len(root), dtype=root.dtype)  # [kept, block], rows of the Cholesky
    chosen: list[int] = []
    while len(chosen) < candidates.wanted:
        step = len(factor)
        fresh = step >= len(candidates.pinned)
        block = candidates.best(spare.float(), chosen) if fresh else candidates.pinned[step]
        row = root[block] * root * candidates.cosines(block)
        row[block] = 1 + beta * candidates.relevance[block]
        row = (row - factor[:, block] @ factor) / spare[block].sqrt()
        factor = torch.cat([factor, row[None]])
        spare = spare - row.square()
        if fresh:
            chosen.append(block)
    return tuple(chosen)


def most_residual(candidates: Candidates, alpha: float) -> tuple[int, ...]:
    """Mid blocks in the order chosen by what is left of their relevance.

    If r_b = ⟨q, x_b⟩, this is to take alpha of q's projection on x_chosen off q (upstream's
    "Lattice"), without knowing q.
    """
    left = candidates.relevance
    for block in candidates.pinned:
        left = left - alpha * left[block] * candidates.cosines(block)
    chosen: list[int] = []
    while len(chosen) < candidates.wanted:
        block = candidates.best(left, chosen)
        left = left - alpha * left[block] * candidates.cosines(block)
        chosen.append(block)
    return tuple(chosen)


def _gain(similarity: Tensor, covered: Tensor, relevance: Tensor) -> float:
    """What a block of these similarities [block] adds to the cover; equal blocks tie."""
    return float(((similarity - covered).clamp(min=0) * relevance).sum().float())
