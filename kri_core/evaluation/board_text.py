"""A leaderboard as Markdown and as JSON: the same records always give the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from attrs import asdict

from kri_core.evaluation.board import Board, Leaderboard
from kri_core.evaluation.nulls import Recovery
from kri_core.evaluation.power import POWER
from kri_core.evaluation.rows import Comparison, Row
from kri_core.evaluation.statistics import DRAWS, Estimate

SCHEMA_VERSION = 1
DIGITS = 6  # after the point, in JSON
COLUMNS = ("− random", "Holm p", "σ documents", "σ seeds", "gap recovered")  # noqa: RUF001
NONE = "–"  # noqa: RUF001

HOW_TO_READ = f"""\
Every number is recomputed from the lines under `results/` by `kri-core eval verify`.

* **±** is the standard error over documents; **[…]** a 95 % interval, bootstrapped over documents
  ({DRAWS} draws), since questions of one document share its luck.
* **− random** is the paired difference, item by item, to random blocks with the same pins and
  budget, each item's null being its mean over the seeds. **Holm p** is of its paired t test over
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
    return "\n\n".join(parts) + "\n"


def _board(board: Board) -> Iterator[str]:
    params = "".join(f"; {name}={value}" for name, value in sorted(board.task_params.items()))
    yield f"## {board.task}, {board.budget} blocks"
    yield f"{board.num_items} items of {board.num_groups} documents{params}."
    yield _measured_against(board)
    if board.not_ranked:
        yield f"**Not ranked:** {board.not_ranked}."
    yield _table(board)
    yield "Random selectors, over seeds (a seed is no new item):"
    yield "\n".join(f"* {_null(row)}" for row in board.nulls)


def _measured_against(board: Board) -> str:
    score = board.ranked_by
    chance = "none" if board.chance is None else f"{board.chance:.3f}"
    text = (
        f"Ranked by {score}. Chance {chance}; floor (no document) "
        f"{_mean(board.floor.scores[score])}; ceiling (full attention) "
        f"{_mean(board.full.scores[score])}. "
    )
    if board.detectable is None:
        return text + "No row differs from random on any document."
    return text + (
        f"A difference to random of {100 * board.detectable:.1f} points is found with "
        f"{POWER:.0%} power, for the row whose difference varies most."
    )


def _table(board: Board) -> str:
    special = (board.full, board.floor, *board.references, *board.nulls)
    others = sorted({*board.full.scores} - {board.ranked_by})
    lines = [("tier", "row", "kept", board.ranked_by, *COLUMNS, *others)]
    lines += [_cells(row, board.ranked_by, others) for row in (*board.rows, *special)]
    rule = "|" + "---|" * len(lines[0])
    shown = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join((shown[0], rule, *shown[1:]))


def _cells(row: Row, score: str, others: Sequence[str]) -> tuple[str, ...]:
    tier = NONE if row.tier is None else f"{row.tier}{' =' if row.tied else ''}"
    ranked = f"{_mean(row.scores[score])} {_interval(row.scores[score])}"
    shown = (_mean(row.scores[name]) if name in row.scores else NONE for name in others)
    against = _against(row.against_random)
    return (tier, row.label, f"{row.kept_fraction:.1%}", ranked, *against, *shown)


def _against(found: Comparison | None) -> tuple[str, ...]:
    if found is None:
        return (NONE,) * len(COLUMNS)
    difference = f"{found.difference.mean:+.3f} {_interval(found.difference, signed=True)}"
    sigmas = (found.sigma_documents, found.sigma_seeds)
    shown = (NONE if sigma is None else f"{sigma:.1f}" for sigma in sigmas)
    return (difference, p_text(found.p_holm), *shown, _recovery(found.recovery))


def p_text(p: float) -> str:
    """Four digits; what is less is not 0."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def _recovery(found: Recovery) -> str:
    """The share with its interval, or why there is none."""
    if found.share is None:
        return f"undefined: {found.undefined}"
    return f"{found.share:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _null(row: Row) -> str:
    seeds = row.seeds
    if seeds is None:
        return row.label
    return (
        f"{row.label}: mean {seeds.mean:.3f}, spread {seeds.spread:.3f} over {seeds.num_seeds} "
        f"seeds, from {seeds.least:.3f} to {seeds.most:.3f}"
    )


def _mean(found: Estimate) -> str:
    return f"{found.mean:.3f} ± {found.error:.3f}"


def _interval(found: Estimate, signed: bool = False) -> str:
    low, high = (f"{end:+.3f}" if signed else f"{end:.3f}" for end in (found.low, found.high))
    return f"[{low}, {high}]"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, DIGITS) + 0.0  # + 0.0: no −0.0, which another machine may not have
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value
