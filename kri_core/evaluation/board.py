"""From records to a board: what belongs together, what is refused, and what is said of all rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import frozen

from kri_core.errors import ArtifactError
from kri_core.evaluation.against_random import Null
from kri_core.evaluation.equal_bytes import shown_once
from kri_core.evaluation.placement import check_placements
from kri_core.evaluation.power import detectable_effect
from kri_core.evaluation.published import Judged, Published, judged
from kri_core.evaluation.records import Record, check_complete
from kri_core.evaluation.refusals import check_one, check_rows_differ, only
from kri_core.evaluation.rows import Beside, Row, compared
from kri_core.evaluation.statistics import LEAST_GROUPS, Sample, estimate
from kri_core.identity import canonical_json

ONE_BOARD = ("fingerprint", "dtype", "substrate")  # what all of a leaderboard's records share
ONE_TASK = ("num_items", "ranked_by", "chance")


@frozen
class Board:
    """Every stack of one task under one budget, with what they are measured against."""

    task: str
    task_params: Mapping[str, str]
    budget: int
    ranked_by: str
    num_items: int
    num_groups: int
    chance: float | None  # None: guessing has no value
    floor: Row  # no document
    full: Row  # the ceiling, which a sparse selection of a weak reader can pass
    rows: tuple[Row, ...]  # the stacks
    nulls: tuple[Row, ...]  # random selectors
    references: tuple[Row, ...]
    detectable: float | None  # at α = .05 for one stack, the one that varies most; None: none does
    unable: str | None  # why the model cannot do the task
    not_ranked: str | None  # why there are no tiers, and nothing is said of any row


@frozen
class Leaderboard:
    """Boards of one model, dtype and substrate."""

    model: str
    fingerprint: str
    dtype: str
    substrate: str
    codes: tuple[str, ...]  # versions of kri-core; more than one is said
    boards: tuple[Board, ...]
    published: Published | None
    judged: tuple[Judged, ...]  # a published row with ours, in the order they were published


def leaderboard(records: Sequence[Record], published: Published | None = None) -> Leaderboard:
    """Every board of these records; an ArtifactError says what keeps them from being one."""
    if not records:
        raise ArtifactError("there is no record to make a board of; give files under results/")
    check_one(records, ONE_BOARD, "a leaderboard")
    tasks: dict[str, list[Record]] = {}
    for record in map(check_complete, records):
        header = record.header
        key = canonical_json([header.task, dict(header.task_params), header.items_digest])
        tasks.setdefault(key, []).append(record)
    boards = [board for _, group in sorted(tasks.items()) for board in _boards(group)]
    one = min(records, key=lambda record: record.name).header
    codes = tuple(sorted({record.header.code for record in records}))
    return Leaderboard(
        **{name: getattr(one, name) for name in ("model", *ONE_BOARD)},
        codes=codes,
        boards=tuple(boards),
        published=published,
        judged=() if published is None else _judged(published, boards),
    )


def _judged(published: Published, boards: Sequence[Board]) -> tuple[Judged, ...]:
    where = (published.task, published.budget)
    found = [one for one in boards if (one.task, one.budget) == where]
    if len(found) > 1:
        raise ArtifactError(
            f"{len(found)} boards are of {published.task} with {published.budget} blocks, and the "
            "published rows are held against one; give the records of one set of items"
        )
    rows = [row for board in found for row in (*board.rows, *board.nulls)]
    score, not_ranked = (found[0].ranked_by, found[0].not_ranked) if found else ("", None)
    return tuple(judged(claim, rows, score, not_ranked) for claim in published.claims)


def _boards(records: Sequence[Record]) -> list[Board]:
    check_one(records, ONE_TASK, f"a board of {records[0].header.task}")
    full, floor = only(records, "full"), only(records, "floor")
    budgets = {record.header.budget for record in records if record.header.role == "stack"}
    if not budgets:
        raise ArtifactError(f"no stack was run on {full.header.task}; a board needs one")
    if None in budgets:
        unlimited = next(one for one in records if one.header.pins[2] is None and _is(one, "stack"))
        raise ArtifactError(f"{unlimited.name} is a stack without a budget; run it with one")
    return [
        _board([one for one in records if _on(one, budget)], budget, full, floor)
        for budget in sorted(budget for budget in budgets if budget is not None)
    ]


def _board(records: Sequence[Record], budget: int, full: Record, floor: Record) -> Board:
    check_rows_differ(records)
    header = full.header
    ceiling_row, floor_row = Row.of(full), Row.of(floor)
    stacks, nulls, others, placements = (
        [record for record in records if _is(record, role)]
        for role in ("stack", "random", "reference", "placement")
    )
    check_placements(placements, stacks)
    ceiling = full.sample(header.ranked_by)
    unable = _unable(ceiling, floor.sample(header.ranked_by), header.ranked_by)
    not_ranked = "; ".join(filter(None, (unable, _too_few(ceiling.num_groups)))) or None
    beside = Beside(ceiling, tuple(map(Null.of, nulls)), tuple(others), tuple(placements))
    rows = compared(stacks, beside, ranked=not_ranked is None)
    return Board(
        task=header.task,
        task_params=header.task_params,
        budget=budget,
        ranked_by=header.ranked_by,
        num_items=header.num_items,
        num_groups=ceiling.num_groups,
        chance=header.chance.get(header.ranked_by),
        floor=floor_row,
        full=ceiling_row,
        rows=rows,
        nulls=_by_label(nulls),
        references=_by_label(shown_once(others)),
        detectable=_detectable(rows),
        unable=unable,
        not_ranked=not_ranked,
    )


def _unable(full: Sample, floor: Sample, score: str) -> str | None:
    if full.mean < floor.mean:
        return (
            f"full attention has {score} {full.mean:.3f}, less than the {floor.mean:.3f} without "
            "the document: this model cannot do this task"
        )
    above, few = full.mean > floor.mean, full.num_groups < LEAST_GROUPS
    if (above and few) or estimate(full.minus(floor)).differs:
        return None
    return (
        "full attention is not told apart from no document: this model cannot do this task, and "
        "no row means anything"
    )


def _too_few(num_groups: int) -> str | None:
    if num_groups >= LEAST_GROUPS:
        return None
    return f"too few documents to rank: {num_groups}, and it takes {LEAST_GROUPS}"


def _detectable(rows: Sequence[Row]) -> float | None:
    differences = [row.against_random.difference for row in rows if row.against_random]
    widest = max(differences, key=lambda one: one.error)
    if not widest.error:
        return None
    return detectable_effect(widest.num_groups, widest.error * math.sqrt(widest.num_groups))


def _by_label(records: Sequence[Record]) -> tuple[Row, ...]:
    return tuple(sorted(map(Row.of, records), key=lambda row: (row.label, row.anchor, row.recent)))


def _on(record: Record, budget: int) -> bool:
    """A reference without a budget, such as the whole document in fewer bits, is on every board."""
    return record.header.budget == budget or (
        record.header.budget is None and _is(record, "reference")
    )


def _is(record: Record, role: str) -> bool:
    return record.header.role == role
