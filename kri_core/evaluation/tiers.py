"""Tiers in the place of ranks: who cannot be told from whom (EVAL 3)."""

from __future__ import annotations

from collections.abc import Sequence

from kri_core.evaluation.statistics import Sample, estimate


def tiers(samples: Sequence[Sample]) -> tuple[int, ...]:
    """Each sample's tier, from 1.

    A row joins the tier of the best row it does not differ from at 95 %; one that differs from
    the best of every tier opens the next. Rows of exactly one mean share a tier: neither their
    names nor the order they come in tells them apart. A noisy row may so stand above a better one.
    """
    tier_of = [0] * len(samples)
    best: list[list[int]] = []  # of each tier, the rows of its highest mean
    for mean in sorted({sample.mean for sample in samples}, reverse=True):
        tied = [row for row, sample in enumerate(samples) if sample.mean == mean]
        found = next((n for n, rows in enumerate(best) if _alike(samples, tied, rows)), len(best))
        if found == len(best):
            best.append(tied)
        for row in tied:
            tier_of[row] = found + 1
    return tuple(tier_of)


def _alike(samples: Sequence[Sample], tied: Sequence[int], best: Sequence[int]) -> bool:
    """Some row of the tie does not differ from some best row."""
    differences = (samples[row].minus(samples[other]) for row in tied for other in best)
    return any(not estimate(difference).differs for difference in differences)
