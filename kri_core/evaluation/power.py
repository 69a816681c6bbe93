"""What a paired comparison can detect, before it is run.

Power of the two-sided paired t test over documents at 5 %: with δ = effect · √documents / spread
and c the critical t of documents − 1 degrees, P(|T| > c) for a noncentral T(δ) (Cohen 1988,
Statistical Power Analysis, chapter 2; the values G*Power and statsmodels give). `spread` is the
standard deviation over documents of their mean differences: √documents · the standard error.
"""

from __future__ import annotations

import math

from attrs import frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.statistics import LEVEL

POWER = 0.8  # the convention; an effect is found in four runs of five
# kri-d-kv-sum detrended against not, needle8: ± 3.7 points over 25 documents of 8 questions
ASSUMED_SPREAD = 0.037 * math.sqrt(25)
MOST_GROUPS = 1_000_000
NOTHING_BEYOND = 5.0  # Φ(−5) is 3e-7


@frozen
class PowerAnalysis:
    """What a number of documents can find, at the wanted power and for one effect."""

    effect: float
    groups: int
    spread: float
    power: float
    wanted_power: float
    detectable_effect: float
    groups_needed: int

    @classmethod
    def of(cls, effect: float, num_groups: int, spread: float) -> PowerAnalysis:
        """For a true effect, a number of documents and their spread."""
        return cls(
            effect,
            num_groups,
            spread,
            power(effect, num_groups, spread),
            POWER,
            detectable_effect(num_groups, spread),
            groups_needed(effect, spread),
        )


def power(effect: float, num_groups: int, spread: float) -> float:
    """The chance that a true effect is told from 0."""
    _check(num_groups, spread)
    return _power(abs(effect) * math.sqrt(num_groups) / spread, num_groups)


def detectable_effect(num_groups: int, spread: float, wanted: float = POWER) -> float:
    """The least effect that is found with the wanted power."""
    from scipy.optimize import brentq

    _check(num_groups, spread)
    high = 1.0
    while _power(high, num_groups) < wanted:
        high *= 2
    shift = brentq(lambda delta: _power(delta, num_groups) - wanted, 0, high)
    return float(shift) * spread / math.sqrt(num_groups)


def groups_needed(effect: float, spread: float, wanted: float = POWER) -> int:
    """The fewest documents with which an effect is found with the wanted power."""
    if effect == 0:
        raise ConfigError("an effect of 0 cannot be detected; give the least one that matters")
    low, high = 1, 2
    while power(effect, high, spread) < wanted:
        low, high = high, 2 * high
        if high > MOST_GROUPS:
            raise ConfigError(
                f"an effect of {effect} with a spread of {spread} takes over {MOST_GROUPS} "
                "documents; give a larger effect"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, middle, spread) >= wanted else (middle, high)
    return high


def _power(shift: float, num_groups: int) -> float:
    from scipy.stats import nct, t

    freedom = num_groups - 1
    critical = t.ppf((1 + LEVEL) / 2, freedom)
    # At most Φ(−shift), of which scipy makes NaN where it is nothing.
    wrong_side = nct.cdf(-critical, freedom, shift) if shift < NOTHING_BEYOND else 0.0
    return float(nct.sf(critical, freedom, shift) + wrong_side)


def _check(num_groups: int, spread: float) -> None:
    if num_groups < 2:
        raise ConfigError(f"a comparison over documents needs at least two; got {num_groups}")
    if not 0 < spread < math.inf:
        raise ConfigError(
            f"the spread over documents must be above 0; got {spread}: give one that was measured"
        )
