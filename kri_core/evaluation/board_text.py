"""A leaderboard as Markdown and as JSON: the same records always give the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from attrs import asdict

from kri_core.evaluation.board import Board, Leaderboard
from kri_core.evaluation.board_parts import (
    EQUAL_BYTES,
    PLACEMENT,
    equal_bytes_table,
    placement_table,
)
from kri_core.evaluation.board_words import (
    flagged,
    items_and_params,
    main_table,
    measured_against,
    null_text,
    published_table,
    published_words,
    score_table,
    summary,
)
from kri_core.evaluation.statistics import DRAWS

SCHEMA_VERSION = 1
DIGITS = 6  # after the point, in JSON

HOW_TO_READ = f"""\
Every number is recomputed from the records given, by `kri-core eval verify`.

* **±** is the standard error over documents; **[…]** a 95 % interval, bootstrapped over documents
  ({DRAWS} draws), since questions of one document share its luck.
* **− random** is the paired difference, item by item, to random blocks with the same pins and
  budget, without pins where these fill the budget (recency, hybrid); each item's null is its mean
  over the seeds. **Holm p** is of its paired t test over
  documents, two-sided, adjusted for all rows of the table.
* **σ documents** is that difference over its standard error over documents: whether it would hold
  on other documents. **σ seeds** is the same difference over the null's spread over seeds: only
  whether it is more than the dice, on these documents. They are not the same σ.
* **gap recovered** is (row − random) / (full − random); it may pass 1, as a weak reader gains from
  fewer distractors.
* A **tier** holds the rows that do not differ at 95 % from its best row; order within a tier says
  nothing. `=` marks rows of exactly one mean.
"""  # noqa: RUF001


def to_json(found: Leaderboard) -> str:
    """One JSON object, floats rounded so that it is the same on every machine."""
    held = {"schema_version": SCHEMA_VERSION, **asdict(found)}
    return json.dumps(_rounded(held), indent=1, ensure_ascii=False) + "\n"


def to_markdown(found: Leaderboard) -> str:
    """A page with one table per task and budget."""
    model = f"{found.model} ({found.fingerprint[:12]}), {found.dtype}, substrate {found.substrate}"
    parts = [
        "# Leaderboard",
        f"{model}, kri-core {' and '.join(found.codes)}.",
        HOW_TO_READ.rstrip(),
        *(part for board in found.boards for part in _board(board)),
    ]
    if found.published:
        parts += ["## Published rows", published_words(found.published)]
        parts.append(_table(published_table(found)))
    return "\n\n".join(parts) + "\n"


def _board(board: Board) -> Iterator[str]:
    yield f"## {board.task}, {board.budget} blocks"
    yield items_and_params(board)
    yield measured_against(board)
    yield summary(board)
    yield from (f"⚑ {text}" for text in flagged(board))
    yield _table(main_table(board))
    if len(placements := placement_table(board)) > 1:
        yield PLACEMENT
        yield _table(placements)
    if len(beside := equal_bytes_table(board)) > 1:
        yield EQUAL_BYTES
        yield _table(beside)
    if len((scores := score_table(board))[0]) > 1:
        yield "The other scores, ± over documents:"
        yield _table(scores)
    yield "Random selectors, over seeds (a seed is no new item):"
    yield "\n".join(f"* {null_text(row)}" for row in board.nulls)


def _table(lines: Sequence[Sequence[str]]) -> str:
    rule = "|" + "---|" * len(lines[0])
    shown = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join((shown[0], rule, *shown[1:]))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, DIGITS) + 0.0  # + 0.0: no −0.0, which another machine may not have
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value
