"""Centrality in the graph of lifts: a block counts if blocks that count are tied to it.

Cost: a step of O(block²) each; eigen took 20 to 30 steps at 32 blocks (ALGORITHMS 7.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kri_core import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

MOVED = 1e-8  # ‖x_{k+1} − x_k‖₁ at which a power iteration has settled
STEPS = 1000


def eigen(lifts: Tensor, lift_cap: float, epsilon: float) -> Tensor:
    """Perron vector of the symmetrised, capped graph, float64 [block], sum 1.

    The raw graph is triangular: its eigenvalues are its diagonal, its stationary vector is block 0.
    """
    return perron(symmetric(lifts.clamp(max=lift_cap)), epsilon)


def symmetric(edges: Tensor) -> Tensor:
    """(E + Eᵀ) / 2, its largest row sum 1; all 0 where there are no edges."""
    both = (edges + edges.mT) / 2
    largest = both.sum(1).max()
    return both / largest if largest > 0 else both


def perron(graph: Tensor, epsilon: float, start: Tensor | None = None) -> Tensor:
    """Power iteration on (1 − ε) · graph + ε / N, whose top vector is positive and the only one.

    A step goes half the way, as if λ I were added: in a star the two halves would take turns.
    """
    count = len(graph)
    positive = (1 - epsilon) * graph + epsilon / count
    x = graph.new_full((count,), 1 / count) if start is None else start / start.sum()
    for _ in range(STEPS):
        following = positive @ x
        following = (following / following.sum() + x) / 2
        if not (following - x).abs().sum() >= MOVED:  # NaN too: the core refuses it by name
            return following
        x = following
    raise ConfigError(
        f"eigen: {STEPS} steps of power iteration did not settle; raise epsilon={epsilon:g}"
    )


def katz(lifts: Tensor, lift_cap: float) -> Tensor:
    """(I − α Eᵀ)⁻¹ 1 with α = 1 / (2 N): paths to a block, those of k edges weighing αᵏ; sum 1."""
    edges = lifts.clamp(max=lift_cap)
    count = len(edges)
    identity = torch.eye(count, dtype=edges.dtype)
    x = torch.linalg.solve(identity - edges.mT * (0.5 / count), edges.new_ones(count))
    return x / x.sum()


def pagerank(lifts: Tensor, lift_cap: float, damping: float) -> Tensor:
    """Where a walk from query to key ends up that restarts anywhere with 1 − damping; sum 1."""
    edges = lifts.clamp(max=lift_cap)
    count = len(edges)
    total = edges.sum(1, keepdim=True)
    # A block that attends to no earlier one, as the first, leads everywhere.
    walk = torch.where(total > 0, edges / total, 1 / count)
    identity = torch.eye(count, dtype=edges.dtype)
    return torch.linalg.solve(
        identity - damping * walk.mT, edges.new_full((count,), (1 - damping) / count)
    )
