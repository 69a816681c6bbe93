"""Second views of a paired difference: McNemar's exact test, and Holm over many tests."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kri_core.evaluation.statistics import Sample


@frozen
class McNemar:
    """Items that only one of two rows has right; exact and two-sided, not the mid-p.

    It takes items for independent: questions of one document are not, so its p is too small.
    """

    only_first: int
    only_second: int
    p: float


def mcnemar(first: Sample, second: Sample) -> McNemar | None:
    """The exact test of two rows of 0s and 1s; None where a score is anything else."""
    from scipy.stats import binomtest

    if not {*first.values, *second.values} <= {0.0, 1.0}:
        return None
    differences = first.minus(second).values
    wins, losses = differences.count(1.0), differences.count(-1.0)
    if wins + losses == 0:
        return McNemar(0, 0, 1.0)
    return McNemar(wins, losses, float(binomtest(wins, wins + losses, 0.5).pvalue))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values, in the order given: at most α keeps the chance of any false one at α.

    Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.
    """
    ascending = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for step, place in enumerate(ascending):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = largest
    return tuple(adjusted)
