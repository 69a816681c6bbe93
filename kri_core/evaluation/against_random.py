"""A row less the random selector of its pins and budget, item by item."""

from __future__ import annotations

import math

from attrs import frozen

from kri_core.errors import ArtifactError
from kri_core.evaluation.nulls import Recovery, SeedSpread, gap_recovery
from kri_core.evaluation.records import Record
from kri_core.evaluation.statistics import (
    LEVEL,
    ROUNDING,
    Estimate,
    Sample,
    estimate,
    p_value,
)

MIN_SEEDS = 20  # of a random selector (EVAL 1)


@frozen
class Comparison:
    """A row less its random selector, item by item.

    The null's value of an item is the mean over its seeds. The two σ answer two questions:
    `sigma_documents` is the difference over its standard error over documents, and says whether it
    would hold on other documents; `sigma_seeds` is the difference over the null's spread over
    seeds, and says only that on these documents it is no luck of the dice.
    """

    null: str
    difference: Estimate
    p: float
    p_holm: float  # over the stacks of the board
    sigma_documents: float | None  # None where nothing varies
    sigma_seeds: float | None
    recovery: Recovery

    @property
    def verdict(self) -> str:
        """Whether the row is better than its null, worse, or flat, by Holm's p."""
        if self.p_holm > 1 - LEVEL + ROUNDING:
            return "flat"
        return "better" if self.difference.mean > 0 else "worse"


@frozen(eq=False)
class Null:
    """A random selector, read once for all rows that are measured against it."""

    record: Record
    sample: Sample
    spread: SeedSpread | None

    @classmethod
    def of(cls, record: Record) -> Null:
        """Of the score that the board ranks by."""
        check_null(record)
        return cls(record, record.sample(record.header.ranked_by), seed_spread(record))


def against_random(record: Record, null: Null, full: Sample) -> Comparison:
    """One stack against its null."""
    row, spread = record.sample(record.header.ranked_by), null.spread
    difference = row.minus(null.sample)
    found, p = estimate(difference), p_value(difference)
    return Comparison(
        null=null.record.header.label,
        difference=found,
        p=p,
        p_holm=p,
        sigma_documents=found.mean / found.error if found.error else None,
        sigma_seeds=found.mean / spread.spread if spread and spread.spread else None,
        recovery=gap_recovery(row, null.sample, full),
    )


def check_null(record: Record) -> None:
    """A null of few seeds has no spread worth the name."""
    if len(record.header.seeds) < MIN_SEEDS:
        raise ArtifactError(
            f"{record.name}: a random null needs {MIN_SEEDS} seeds; it has "
            f"{len(record.header.seeds)}: run more"
        )


def seed_spread(record: Record) -> SeedSpread | None:
    """Of the score the board ranks by; None with one seed."""
    score = record.header.ranked_by
    by_seed: dict[int, list[float]] = {}
    for result in record.results:
        by_seed.setdefault(result.seed, []).append(result.scores[score])
    if len(by_seed) < 2:
        return None
    return SeedSpread.of([math.fsum(values) / len(values) for values in by_seed.values()])
