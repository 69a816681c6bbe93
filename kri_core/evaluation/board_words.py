"""What a board says, in words and in the cells of its tables, whatever it is written as."""

from __future__ import annotations

from collections.abc import Iterator

from kri_core.evaluation.against_random import Comparison
from kri_core.evaluation.board import Board, Leaderboard
from kri_core.evaluation.nulls import Recovery
from kri_core.evaluation.power import POWER
from kri_core.evaluation.published import Published
from kri_core.evaluation.rows import Row
from kri_core.evaluation.statistics import Estimate

COLUMNS = ("− random", "Holm p", "σ documents", "σ seeds", "gap recovered")  # noqa: RUF001
NONE = "–"  # noqa: RUF001


def items_and_params(board: Board) -> str:
    """What the board is of, on one line."""
    shown = (
        f"; {name}={value if value.isprintable() else repr(value)}"
        for name, value in sorted(board.task_params.items())
    )
    return f"{board.num_items} items of {board.num_groups} documents{''.join(shown)}."


def measured_against(board: Board) -> str:
    """Chance, floor, ceiling and, where rows are judged, the least difference that can be found."""
    score = board.ranked_by
    chance = "none" if board.chance is None else f"{board.chance:.3f}"
    text = (
        f"Ranked by {score}. Chance {chance}; floor (no document) "
        f"{mean(board.floor.scores[score])}; ceiling (full attention) "
        f"{mean(board.full.scores[score])}."
    )
    if board.not_ranked:
        return text
    if board.detectable is None:
        return text + " No row differs from random on any document."
    return text + (
        f" A difference to random of {100 * board.detectable:.1f} points is found with "
        f"{POWER:.0%} power for one comparison, unadjusted, by the row whose difference varies "
        "most; Holm's p asks for more."
    )


def summary(board: Board) -> str:
    """How many rows beat random, and which cannot be told from the best; or why nothing is said."""
    if board.not_ranked:
        return f"Not ranked: {board.not_ranked}."
    found = [row.against_random for row in board.rows if row.against_random]
    said = [one.verdict for one in found]
    text = (
        f"Of {len(found)} rows {said.count('better')} are better than their random blocks, "
        f"{said.count('worse')} worse, the others not told apart from them (Holm, 5 %)."
    )
    best = [row.label for row in board.rows if row.tier == 1]
    return text + (f" In the best tier: {'; '.join(best)}." if best else "")


def flagged(board: Board) -> Iterator[str]:
    """What to look at before a row is believed, and which rows could not be looked at."""
    by_flag: dict[str, list[str]] = {}
    by_reason: dict[str, list[str]] = {}
    for row in board.rows:
        if row.leak and row.leak.flag:
            by_flag.setdefault(row.leak.flag, []).append(row.label)
        if row.leak and row.leak.unchecked:
            by_reason.setdefault(row.leak.unchecked, []).append(row.label)
    for flag, labels in sorted(by_flag.items()):
        yield f"{'; '.join(labels)}{': each' if len(labels) > 1 else ''} {flag}."
    for reason, labels in sorted(by_reason.items()):
        yield f"Not checked for a leak, as {reason}: {'; '.join(labels)}."


def other_scores(board: Board) -> list[str]:
    """The scores that a board does not rank by."""
    return sorted({*board.full.scores} - {board.ranked_by})


def all_rows(board: Board) -> tuple[Row, ...]:
    """The stacks, then what they are measured against."""
    return (*board.rows, board.full, board.floor, *board.references, *board.nulls)


def main_table(board: Board) -> list[tuple[str, ...]]:
    """A header and a line per row: what decides where it stands."""
    return [
        ("tier", "row", "kept", board.ranked_by, *COLUMNS),
        *(_cells(row, board.ranked_by) for row in all_rows(board)),
    ]


def score_table(board: Board) -> list[tuple[str, ...]]:
    """A header and a line per row: the other scores, ± over documents."""
    others = other_scores(board)
    return [
        ("row", *others),
        *(
            (row.label, *(mean(row.scores[n]) if n in row.scores else NONE for n in others))
            for row in all_rows(board)
        ),
    ]


def _cells(row: Row, score: str) -> tuple[str, ...]:
    tier = NONE if row.tier is None else f"{row.tier}{' =' if row.tied else ''}"
    flag = " ⚑" if row.leak and row.leak.flag else ""
    ranked = f"{mean(row.scores[score])} {interval(row.scores[score])}"
    shown = (tier, row.label + flag, f"{row.kept_fraction:.1%}", ranked)
    return (*shown, *_against(row.against_random))


def _against(found: Comparison | None) -> tuple[str, ...]:
    if found is None:
        return (NONE,) * len(COLUMNS)
    difference = f"{found.difference.mean:+.3f} {interval(found.difference, signed=True)}"
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


def null_text(row: Row) -> str:
    """A random selector's spread over its seeds."""
    seeds = row.seeds
    if seeds is None:
        return row.label
    return (
        f"{row.label}: mean {seeds.mean:.3f}, spread {seeds.spread:.3f} over {seeds.num_seeds} "
        f"seeds, from {seeds.least:.3f} to {seeds.most:.3f}"
    )


def published_words(published: Published) -> str:
    """Where the figures are from, and what cannot be read off them."""
    return (
        f"{published.source} Theirs are measured on {published.measured_on}, ours on "
        f"{published.task} with {published.budget} blocks: the figures cannot be compared, only "
        "their order and signs. Their random blocks have no pins; ours are the selector named."
    )


def published_table(found: Leaderboard) -> list[tuple[str, ...]]:
    """A header and a line per published row."""
    return [
        ("published", "figure", "against random", "our row", "ours", COLUMNS[0], "ours is"),
        *(
            (
                one.claim.name,
                one.claim.figure,
                one.claim.against_random,
                one.claim.label,
                NONE if one.ours is None else mean(one.ours),
                NONE if one.difference is None else signed(one.difference),
                one.verdict,
            )
            for one in found.judged
        ),
    ]


def signed(found: Estimate) -> str:
    """A difference with its error and interval."""
    return f"{found.mean:+.3f} ± {found.error:.3f} {interval(found, signed=True)}"


def mean(found: Estimate) -> str:
    """With its standard error."""
    return f"{found.mean:.3f} ± {found.error:.3f}"


def interval(found: Estimate, signed: bool = False) -> str:
    """95 %, over documents."""
    low, high = (f"{end:+.3f}" if signed else f"{end:.3f}" for end in (found.low, found.high))
    return f"[{low}, {high}]"
