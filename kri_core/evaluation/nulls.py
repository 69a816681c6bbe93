"""A random selector as the null, and how much of the gap to full attention a row recovers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.statistics import (
    DRAWS,
    SEED,
    Sample,
    estimate,
    resampled_means,
    widened_tail,
)


@frozen
class SeedSpread:
    """Means over the same items, one per seed; a seed is no new item.

    The spread says how much the selector's own dice matter on these items, not how another set of
    documents would come out.
    """

    mean: float
    spread: float  # standard deviation over seeds
    least: float
    most: float
    num_seeds: int

    @classmethod
    def of(cls, means: Sequence[float]) -> SeedSpread:
        """From one mean per seed."""
        if len(means) < 2:
            raise ConfigError(f"a spread over seeds needs at least two; got {len(means)}")
        centre = math.fsum(means) / len(means)
        squares = math.fsum((mean - centre) ** 2 for mean in means)
        spread = math.sqrt(squares / (len(means) - 1))
        return cls(centre, spread, min(means), max(means), len(means))


@frozen
class Recovery:
    """(row − random) / (full − random) with its interval, or why there is none."""

    share: float | None
    low: float | None
    high: float | None
    undefined: str | None = None


def gap_recovery(
    row: Sample, random: Sample, full: Sample, draws: int = DRAWS, seed: int = SEED
) -> Recovery:
    """How much of the way from random to full attention a row goes, over documents.

    A draw without a gap counts at both ends of the interval, so that it errs to the wide side.
    """
    import numpy as np

    gain, gap = row.minus(random), full.minus(random)
    whole = estimate(gap, draws, seed)
    if whole.high < 0:
        return Recovery(None, None, None, f"full attention is below random ({whole.mean:+.3f})")
    gains, gaps = resampled_means((gain, gap), draws, seed).T
    there = gaps > 0
    ratios = np.divide(gains, gaps, out=np.zeros_like(gains), where=there)
    tail = widened_tail(row.num_groups)
    low = float(np.quantile(np.where(there, ratios, -np.inf), tail, method="lower"))
    high = float(np.quantile(np.where(there, ratios, np.inf), 1 - tail, method="higher"))
    if math.isinf(low):  # and high with it, just where the interval of the gap includes 0
        said = f"full less random is {whole.mean:+.3f}, and its interval includes 0"
        return Recovery(None, None, None, said)
    return Recovery(gain.mean / gap.mean, low, high)
