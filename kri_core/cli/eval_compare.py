"""Two records item by item: what `kri-core eval compare` finds and shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import fields, frozen

from kri_core.cli.output import print_fields
from kri_core.errors import ArtifactError
from kri_core.evaluation.board_words import p_text
from kri_core.evaluation.power import POWER, detectable_effect
from kri_core.evaluation.reading import read_record
from kri_core.evaluation.records import Header, check_complete
from kri_core.evaluation.significance import McNemar, mcnemar
from kri_core.evaluation.statistics import LEAST_GROUPS, Estimate, estimate, p_value

if TYPE_CHECKING:
    from kri_core.evaluation.records import Record


@frozen
class Compared:
    """Two records, and the first less the second."""

    score: str
    first_label: str
    second_label: str
    differ_in: tuple[str, ...]  # of their headers
    first: Estimate
    second: Estimate
    difference: Estimate
    p: float
    spread: float  # of the documents' mean differences, what power asks for
    detectable: float | None  # None: nothing varies
    mcnemar: McNemar | None  # None: not right or wrong, but something between


def comparison(first: Path, second: Path, score: str | None) -> Compared:
    """Compare by a score; both must be whole and of the same items."""
    one, other = (check_complete(read_record(path)) for path in (first, second))
    if one.header.items_digest != other.header.items_digest:
        raise ArtifactError(
            f"{one.name} and {other.name} are of other documents or questions; give two records of "
            "the same task with the same parameters"
        )
    score = score or one.header.ranked_by
    mine, theirs = one.sample(score), other.sample(score)
    difference = mine.minus(theirs)
    found = estimate(difference)
    spread = found.error * math.sqrt(found.num_groups)
    return Compared(
        score=score,
        first_label=one.header.label,
        second_label=other.header.label,
        differ_in=_differences(one, other),
        first=estimate(mine),
        second=estimate(theirs),
        difference=found,
        p=p_value(difference),
        spread=spread,
        detectable=detectable_effect(found.num_groups, spread) if spread else None,
        mcnemar=mcnemar(mine, theirs),
    )


def print_comparison(found: Compared) -> None:
    """A line per number, with what it means."""
    clustered = found.difference
    enough = clustered.num_groups >= LEAST_GROUPS
    verdict = "they differ at 95 %" if clustered.differs else "not told apart at 95 %"
    if not enough:
        verdict = f"{clustered.num_groups} documents are too few to say, it takes {LEAST_GROUPS}"
    sigma = ""
    if clustered.error:
        sigma = f", {clustered.mean / clustered.error:+.1f} σ over documents"  # noqa: RUF001
    test = found.mcnemar
    print_fields(
        {
            f"first ({found.score})": f"{_shown(found.first)}  {found.first_label}",
            f"second ({found.score})": f"{_shown(found.second)}  {found.second_label}",
            "they differ in": ", ".join(found.differ_in) or "nothing",
            "documents": f"{clustered.num_groups}, {clustered.num_items} items",
            "first − second": f"{_shown(clustered, '+')}, p {p_text(found.p)}{sigma}: {verdict}",  # noqa: RUF001
            "McNemar, exact": "needs scores of 0 and 1"
            if test is None
            else f"{test.only_first}:{test.only_second}, p {p_text(test.p)}, as if items were "
            "independent",
            "detectable": None
            if found.detectable is None or not enough
            else f"{100 * found.detectable:.1f} points, with {POWER:.0%} power",
        }
    )


def _differences(one: Record, other: Record) -> tuple[str, ...]:
    names = (field.name for field in fields(Header))
    return tuple(n for n in names if getattr(one.header, n) != getattr(other.header, n))


def _shown(found: Estimate, sign: str = "") -> str:
    mean, low, high = (f"{end:{sign}.3f}" for end in (found.mean, found.low, found.high))
    return f"{mean} ± {found.error:.3f} [{low}, {high}]"
