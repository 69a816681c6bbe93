"""What can be said of a score over documents: its mean, its error, its interval, a difference.

The unit is the document (`group`), not the question: questions of one document share its luck.
The interval is the percentile bootstrap over documents, its tails widened for few documents
("expanded percentile", Hesterberg, arXiv 1411.5279); the standard error is the one of a ratio of
sums over documents, with equal counts the spread of their means over √documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from attrs import frozen

from kri_core.errors import ConfigError

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

DRAWS = 10_000  # EVAL 3
SEED = 20_251_130  # of PCG64; an interval is the same on every machine
LEVEL = 0.95
# Documents for a verdict: over fewer, a two-sided sign test cannot reach 1 % (2 · ½⁷ = 1.6 %).
LEAST_GROUPS = 8
ROUNDING = 1e-12  # below it an error is what subtracting floats leaves
ROUNDED = 12  # digits of a resampled mean
CHUNK = 1_000_000  # document indices held at once: 8 MB


@frozen
class Sample:
    """One number per item, by ascending id, each in the group it is resampled with."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, items: Iterable[tuple[str, str, float]]) -> Sample:
        """From (id, group, value) in any order."""
        ids, groups, values = zip(*sorted(items), strict=True)
        return cls(ids, groups, values)

    def __attrs_post_init__(self) -> None:
        if len(set(self.ids)) < len(self.ids):
            raise ConfigError("an item is there twice; give one value for each")
        if self.num_groups < 2:
            raise ConfigError(
                f"an interval over documents needs at least two; got {self.num_groups}: "
                "evaluate more"
            )

    @property
    def num_groups(self) -> int:
        """Documents, of which each draw takes as many again."""
        return len(set(self.groups))

    @property
    def mean(self) -> float:
        """Over items; correctly rounded, so that equal counts tie exactly."""
        return math.fsum(self.values) / len(self.values)

    def minus(self, other: Sample) -> Sample:
        """The paired differences; both must have the same items of the same documents."""
        if (self.ids, self.groups) != (other.ids, other.groups):
            mine = set(zip(self.ids, self.groups, strict=True))
            alone = len(mine ^ set(zip(other.ids, other.groups, strict=True)))
            raise ConfigError(
                f"a paired difference needs the same items on both sides; {alone} are on one "
                "side only: compare records of the same task and documents"
            )
        pairs = zip(self.values, other.values, strict=True)
        return Sample(self.ids, self.groups, tuple(mine - theirs for mine, theirs in pairs))


@frozen
class Estimate:
    """A mean over items with its standard error and 95 % interval over documents."""

    mean: float
    error: float
    low: float
    high: float
    num_items: int
    num_groups: int

    @property
    def differs(self) -> bool:
        """The interval leaves out 0."""
        return not self.low <= 0 <= self.high


def estimate(sample: Sample, draws: int = DRAWS, seed: int = SEED) -> Estimate:
    """Mean, standard error and interval of a sample."""
    import numpy as np

    means = resampled_means((sample,), draws, seed)[:, 0]
    tail = widened_tail(sample.num_groups)
    low, high = np.quantile(means, (tail, 1 - tail))
    return Estimate(
        sample.mean,
        standard_error(sample),
        float(low),
        float(high),
        len(sample.ids),
        sample.num_groups,
    )


def standard_error(sample: Sample) -> float:
    """Over documents: √(G/(G−1) · Σ (sum of a document − its items · mean)²) / items."""
    sums, counts = _per_group((sample,))
    residuals = sums[:, 0] - counts * sample.mean
    count = len(counts)
    error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / len(sample.ids)
    return error if error > ROUNDING else 0.0


def p_value(difference: Sample) -> float:
    """Two-sided paired t test over documents: the mean over its standard error, G−1 degrees.

    Where no document differs from another it is 2^(1−G), the least that flipping the signs of
    documents can give.
    """
    from scipy.stats import t

    error, count = standard_error(difference), difference.num_groups
    if error == 0:
        return 1.0 if difference.mean == 0 else 2.0 ** (1 - count)
    return 2 * float(t.sf(abs(difference.mean) / error, count - 1))


def resampled_means(samples: Sequence[Sample], draws: int, seed: int) -> NDArray[float64]:
    """Means of samples of the same items over the same draws of documents, [draw, sample].

    Rounded, as the order of a sum differs between machines and an interval may end at 0.
    """
    sums, counts = _per_group(samples)
    weights = _drawn(len(counts), draws, seed)
    means: NDArray[float64] = (weights @ sums / (weights @ counts)[:, None]).round(ROUNDED)
    return means


@lru_cache(maxsize=2)  # every row of a board is resampled over the same draws
def _drawn(count: int, draws: int, seed: int) -> NDArray[float64]:
    """How often each draw takes each document, [draw, group]."""
    import numpy as np

    random = np.random.Generator(np.random.PCG64(seed))
    step = max(1, CHUNK // count)
    weights = np.zeros((draws, count))
    for start in range(0, draws, step):
        drawn = random.integers(count, size=(min(step, draws - start), count))
        rows = np.arange(start, start + len(drawn))[:, None]
        np.add.at(weights, (rows, drawn), 1)
    return weights


def widened_tail(num_groups: int) -> float:
    """The percentile that makes up for few documents: Φ(−√(G/(G−1)) · t with G−1 degrees)."""
    from scipy.stats import norm, t

    quantile = t.ppf((1 + LEVEL) / 2, num_groups - 1)
    return float(norm.cdf(-math.sqrt(num_groups / (num_groups - 1)) * quantile))


def _per_group(samples: Sequence[Sample]) -> tuple[NDArray[float64], NDArray[float64]]:
    """Sums [group, sample] and item counts [group]."""
    import numpy as np

    names, member = np.unique(np.array(samples[0].groups), return_inverse=True)
    sums = [np.bincount(member, np.array(one.values), len(names)) for one in samples]
    return np.stack(sums, 1), np.bincount(member).astype(float)
