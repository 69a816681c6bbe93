"""A board's rows, each from one record: its scores, and how it stands against the random null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from kri_core.errors import ArtifactError
from kri_core.evaluation.against_random import (
    MIN_SEEDS,
    Comparison,
    Null,
    against_random,
    seed_spread,
)
from kri_core.evaluation.equal_bytes import EqualBytes, equal_bytes_of
from kri_core.evaluation.leaks import LeakCheck, leak_check
from kri_core.evaluation.nulls import SeedSpread
from kri_core.evaluation.placement import Placement, placement_of
from kri_core.evaluation.records import Record
from kri_core.evaluation.significance import holm
from kri_core.evaluation.statistics import Estimate, Sample, estimate
from kri_core.evaluation.tiers import tiers

Pins = tuple[int, int, int | None]  # anchor, recent, budget


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
    placement: Placement | None  # None: no placement row was run
    equal_bytes: EqualBytes | None  # None: no quantised document of its budget was run
    leak: LeakCheck | None
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
            seeds=seed_spread(record),
            tier=None,
            tied=False,
            against_random=None,
            placement=None,
            equal_bytes=None,
            leak=None,
            code=header.code,
            record=record.name,
            seal=record.seal,
        )


@frozen(eq=False)
class Beside:
    """What the stacks of one board are measured against."""

    full: Sample
    nulls: tuple[Null, ...]
    references: tuple[Record, ...]
    placements: tuple[Record, ...]

    def null_of(self, record: Record) -> Null:
        """The random selector that a row is measured against."""
        pins = null_pins(record.header.pins)
        if found := self.null_with(pins):
            return found
        anchor, recent, budget = pins
        raise ArtifactError(
            f"{record.header.label} has no random selector with its pins (A{anchor}R{recent}, "
            f"budget {budget}) beside it; run one with at least {MIN_SEEDS} seeds"
        )

    def null_with(self, pins: Pins) -> Null | None:
        """The random selector with exactly these pins."""
        return next((null for null in self.nulls if null.record.header.pins == pins), None)


def compared(records: Sequence[Record], beside: Beside, ranked: bool) -> tuple[Row, ...]:
    """The stacks' rows, best tier first; within a tier by mean, where that says nothing by name."""
    score = records[0].header.ranked_by
    samples = [record.sample(score) for record in records]
    rows = _holm_adjusted([_row(record, beside) for record in records])
    if not ranked:
        return tuple(sorted(rows, key=lambda row: row.label))
    means = [sample.mean for sample in samples]
    placed = [
        evolve(row, tier=tier, tied=means.count(mean) > 1)
        for row, tier, mean in zip(rows, tiers(samples), means, strict=True)
    ]
    return tuple(sorted(placed, key=lambda row: (row.tier, -row.scores[score].mean, row.label)))


def _row(record: Record, beside: Beside) -> Row:
    null = beside.null_of(record)
    unpinned = beside.null_with((0, 0, record.header.budget))
    return evolve(
        Row.of(record),
        against_random=against_random(record, null, beside.full),
        placement=placement_of(record, beside.placements, unpinned.sample if unpinned else None),
        equal_bytes=equal_bytes_of(record, beside.references),
        leak=leak_check(record, null.record, beside.references),
    )


def null_pins(pins: Pins) -> Pins:
    """A row's own pins; where these fill the budget, none."""
    anchor, recent, budget = pins
    return (0, 0, budget) if budget is not None and anchor + recent >= budget else pins


def _holm_adjusted(rows: Sequence[Row]) -> list[Row]:
    found = [row.against_random for row in rows if row.against_random]
    adjusted = holm([one.p for one in found])
    return [
        evolve(row, against_random=evolve(one, p_holm=p))
        for row, one, p in zip(rows, found, adjusted, strict=True)
    ]
