"""A board's rows, each from one record: its scores, and how it stands against the random null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from kri_core.errors import ArtifactError
from kri_core.evaluation.nulls import Recovery, SeedSpread, gap_recovery
from kri_core.evaluation.records import Record
from kri_core.evaluation.significance import holm
from kri_core.evaluation.statistics import Estimate, estimate, p_value
from kri_core.evaluation.tiers import tiers

MIN_SEEDS = 20  # of a random selector (EVAL 1)
Pins = tuple[int, int, int | None]  # anchor, recent, budget


@frozen
class Comparison:
    """A row less the random selector of its pins and budget, item by item.

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


@frozen
class Row:
    """One record on a board."""

    label: str
    role: str
    anchor: int
    recent: int
    kept_fraction: float
    refreshed_tokens: float  # per item
    seconds: float  # per item
    scores: Mapping[str, Estimate]
    seeds: SeedSpread | None  # of the ranked score; None with one seed
    tier: int | None  # None: not ranked
    tied: bool  # another row has exactly the same mean
    against_random: Comparison | None
    code: str
    record: str
    seal: str

    @classmethod
    def of(cls, record: Record) -> Row:
        """A record's own numbers, not yet compared with any other."""
        header, count = record.header, len(record.results)
        shared = set.intersection(*(set(result.scores) for result in record.results))
        return cls(
            label=header.label,
            role=header.role,
            anchor=header.anchor,
            recent=header.recent,
            kept_fraction=math.fsum(result.kept_fraction for result in record.results) / count,
            refreshed_tokens=sum(result.refreshed_tokens for result in record.results) / count,
            seconds=math.fsum(result.seconds for result in record.results) / count,
            scores={
                name: estimate(record.sample(name)) for name in sorted({header.ranked_by, *shared})
            },
            seeds=_seed_spread(record),
            tier=None,
            tied=False,
            against_random=None,
            code=header.code,
            record=record.name,
            seal=record.seal,
        )


def compared(
    records: Sequence[Record], nulls: Sequence[Record], full: Record, ranked: bool
) -> tuple[Row, ...]:
    """The stacks' rows, best tier first; within a tier by mean, where that says nothing by name."""
    score = full.header.ranked_by
    samples = [record.sample(score) for record in records]
    rows = [
        evolve(Row.of(record), against_random=_against(record, nulls, full)) for record in records
    ]
    rows = _holm_adjusted(rows)
    if not ranked:
        return tuple(sorted(rows, key=lambda row: row.label))
    means = [sample.mean for sample in samples]
    placed = [
        evolve(row, tier=tier, tied=means.count(mean) > 1)
        for row, tier, mean in zip(rows, tiers(samples), means, strict=True)
    ]
    return tuple(sorted(placed, key=lambda row: (row.tier, -row.scores[score].mean, row.label)))


def null_of(record: Record, nulls: Sequence[Record]) -> Record:
    """The random selector that a row is measured against."""
    anchor, recent, budget = null_pins(record.header.pins)
    for null in nulls:
        if null.header.pins == (anchor, recent, budget):
            return null
    raise ArtifactError(
        f"{record.header.label} has no random selector with its pins (A{anchor}R{recent}, budget "
        f"{budget}) beside it; run one with at least {MIN_SEEDS} seeds"
    )


def null_pins(pins: Pins) -> Pins:
    """A row's own pins; where these fill the budget, none."""
    anchor, recent, budget = pins
    return (0, 0, budget) if budget is not None and anchor + recent >= budget else pins


def check_null(record: Record) -> None:
    """A null of few seeds has no spread worth the name."""
    if len(record.header.seeds) < MIN_SEEDS:
        raise ArtifactError(
            f"{record.name}: a random null needs {MIN_SEEDS} seeds; it has "
            f"{len(record.header.seeds)}: run more"
        )


def _seed_spread(record: Record) -> SeedSpread | None:
    seeds, score = record.header.seeds, record.header.ranked_by
    if len(seeds) < 2:
        return None
    return SeedSpread.of([record.sample(score, seed).mean for seed in seeds])


def _against(record: Record, nulls: Sequence[Record], full: Record) -> Comparison:
    null = null_of(record, nulls)
    score = record.header.ranked_by
    row, random = record.sample(score), null.sample(score)
    difference = row.minus(random)
    found, p = estimate(difference), p_value(difference)
    spread = _seed_spread(null)
    return Comparison(
        null=null.header.label,
        difference=found,
        p=p,
        p_holm=p,
        sigma_documents=found.mean / found.error if found.error else None,
        sigma_seeds=found.mean / spread.spread if spread and spread.spread else None,
        recovery=gap_recovery(row, random, full.sample(score)),
    )


def _holm_adjusted(rows: Sequence[Row]) -> list[Row]:
    found = [row.against_random for row in rows if row.against_random]
    adjusted = holm([one.p for one in found])
    return [
        evolve(row, against_random=evolve(one, p_holm=p))
        for row, one, p in zip(rows, found, adjusted, strict=True)
    ]
