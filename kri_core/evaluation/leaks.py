"""Which rows keep as much of the evidence as a reference that is told where it is.

A question-blind row keeps the same blocks for every item of a document, so at best it knows what
`oracle-doc` knows; it is held against that, on the documents whose evidence that holds whole: of
others it keeps what comes first, which a row may honestly better. A row that reads the question
can honestly find what `oracle` is told, so it is held against `oracle` and in other words. With
one item to a document the two look alike, and no row is taken for blind. Neither is a proof: a
flag says what to look at. Keeping most of a document keeps the evidence too, so a row is flagged
only if it also keeps more than the random selector of its pins.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kri_core.evaluation.records import Record
from kri_core.evaluation.statistics import LEAST_GROUPS, Sample, estimate

COVER = "cover"
BLIND = (
    "keeps as much of the evidence as oracle-doc, which is told where it is, of the documents of "
    "which that keeps all: look for a leak"
)
AWARE = (
    "keeps as much of the evidence as oracle, which is told where it is; reading the question can "
    "do so honestly: check that it reads nothing else"
)

NO_ORACLE = "no oracle with their pins or no evidence is recorded"
NO_ROOM = f"oracle-doc of their pins and budget has all evidence of under {LEAST_GROUPS} documents"
TOO_FEW = f"it takes {LEAST_GROUPS} documents"


@frozen
class LeakCheck:
    """What holding a row against an oracle found, or why it was not done."""

    flag: str | None = None
    unchecked: str | None = None


def leak_check(record: Record, null: Record, oracles: Sequence[Record]) -> LeakCheck:
    """Compare a row's cover with that of the oracle of the same pins and budget."""
    blind = question_blind(record)
    end = "(oracle-doc)" if blind else "(oracle)"
    oracle = next(
        (
            one
            for one in oracles
            if one.header.stack.endswith(end) and one.header.pins == null.header.pins
        ),
        None,
    )
    if oracle is None or not all(_has_cover(one) for one in (record, null, oracle)):
        return LeakCheck(unchecked=NO_ORACLE)
    kept, told = record.sample(COVER), oracle.sample(COVER)
    if kept.num_groups < LEAST_GROUPS:
        return LeakCheck(unchecked=TOO_FEW)
    difference = _where_all_is_kept(kept, told) if blind else kept.minus(told)
    if difference is None:
        return LeakCheck(unchecked=NO_ROOM)
    below = estimate(difference).high < 0
    chosen = estimate(kept.minus(null.sample(COVER))).low > 0
    return LeakCheck((BLIND if blind else AWARE) if chosen and not below else None)


def _where_all_is_kept(kept: Sample, told: Sample) -> Sample | None:
    """`kept` less `told`, of the documents of which `told` is all; None: too few of them."""
    short = {group for group, cover in zip(told.groups, told.values, strict=True) if cover < 1}
    if len(set(told.groups) - short) < LEAST_GROUPS:
        return None
    difference = kept.minus(told)
    items = zip(difference.ids, difference.groups, difference.values, strict=True)
    return Sample.of(item for item in items if item[1] not in short)


def question_blind(record: Record) -> bool:
    """Every item of a group has the same blocks under each seed, and some group has two."""
    kept: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for result in record.results:
        kept.setdefault((result.group, result.seed), []).append(result.kept)
    return any(len(found) > 1 for found in kept.values()) and all(
        len(set(found)) == 1 for found in kept.values()
    )


def _has_cover(record: Record) -> bool:
    return all(COVER in result.scores for result in record.results)
