"""A leaderboard as one HTML page, which asks nothing of the network and needs no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from kri_core.evaluation.board import Board, Leaderboard
from kri_core.evaluation.board_parts import (
    EQUAL_BYTES,
    PLACEMENT,
    equal_bytes_table,
    placement_table,
)
from kri_core.evaluation.board_text import HOW_TO_READ
from kri_core.evaluation.board_words import (
    flagged,
    items_and_params,
    main_table,
    measured_against,
    null_text,
    published_table,
    published_words,
    score_table,
    signed,
    summary,
)
from kri_core.evaluation.page_style import SCRIPT, STYLE
from kri_core.evaluation.plots import Line, Mark, interval_plot
from kri_core.evaluation.plots_kept import kept_plot, legend
from kri_core.evaluation.rows import Row

LEAST, MOST = -0.5, 1.5  # of the gap recovered; an interval beyond is drawn at the edge


def to_html(found: Leaderboard) -> str:
    """A section per task and board, the published rows last."""
    title = escape(f"Leaderboard: {found.model}")
    about = f"{found.model} ({found.fingerprint[:12]}), {found.dtype}, substrate {found.substrate}"
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">\n<title>{title}</title>',
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style></head>',
        f"<body><h1>{title}</h1>",
        _paragraph(f"{about}, kri-core {' and '.join(found.codes)}."),
        _how_to_read(),
        '<p class="filter" hidden><label>Show only rows with <input type="search"></label></p>',
    ]
    for _, group in groupby(found.boards, lambda board: (board.task, str(board.task_params))):
        parts += _task(list(group))
    if found.published:
        parts.append("<h2>Published rows</h2>")
        parts.append(_paragraph(published_words(found.published)))
        parts.append(_table(published_table(found), "Published rows", 3))
    return "\n".join((*parts, f"<script>{SCRIPT}</script></body></html>\n"))


def _task(boards: Sequence[Board]) -> Iterator[str]:
    first = boards[0]
    yield f"<h2>{escape(first.task)}</h2>"
    yield _paragraph(items_and_params(first))
    yield _figure(
        kept_plot(boards),
        f"{first.ranked_by} with 95 % intervals. The rows of one budget are spread sideways by "
        "their mean, so that each can be pointed at; lines join the budgets of a stack.",
        legend(boards),
    )
    for board in boards:
        yield from _board(board)


def _board(board: Board) -> Iterator[str]:
    name = f"{board.task}, {board.budget} blocks"
    yield f"<h3>{escape(name)}</h3>"
    yield _paragraph(measured_against(board))
    yield _paragraph(summary(board))
    yield from (_paragraph(f"⚑ {text}") for text in flagged(board))
    yield _table(main_table(board), name, 1)
    if lines := [line for line in map(_recovered, board.rows) if line]:
        plot = interval_plot("Gap recovered, per stack", lines, LEAST, MOST, (0, 1))
        yield _figure(plot, "Gap recovered with 95 % intervals: 0 is random, 1 full attention.")
    if placed := [row for row in board.rows if row.placement]:
        yield _figure(_placement_plot(placed), f"{PLACEMENT} Squares: placement; circles: content.")
        yield _table(placement_table(board), f"{name}: placement and content", 0)
    if len(beside := equal_bytes_table(board)) > 1:
        yield _paragraph(EQUAL_BYTES)
        yield _table(beside, f"{name}: equal bytes", 0)
    if len((scores := score_table(board))[0]) > 1:
        yield "<details><summary>The other scores, ± over documents</summary>"
        yield f"{_table(scores, f'{name}: other scores', 0)}</details>"
    yield "<details><summary>Random selectors, over seeds</summary><ul>"
    yield from (f"<li>{escape(null_text(row))}</li>" for row in board.nulls)
    yield "</ul></details>"


def _recovered(row: Row) -> Line | None:
    found = row.against_random.recovery if row.against_random else None
    if found is None or found.share is None or found.low is None or found.high is None:
        return None
    said = f"{row.label}: {found.share:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return Line(row.label, (Mark(found.low, found.share, found.high, "c0", "circle", said),))


def _placement_plot(rows: Sequence[Row]) -> str:
    lines = [_parts(row) for row in rows]
    least = min(0.0, *(mark.low for line in lines for mark in line.marks))
    most = max(0.1, *(mark.high for line in lines for mark in line.marks))
    return interval_plot("Placement and content, per stack", lines, least, most, (0,))


def _parts(row: Row) -> Line:
    if row.placement is None:  # _board has left these out
        return Line(row.label, ())
    found = (
        ("placement", row.placement.placement, "c1", "square"),
        ("content", row.placement.content, "c0", "circle"),
    )
    marks = (
        Mark(one.low, one.mean, one.high, kind, shape, f"{row.label}: {name} {signed(one)}")
        for name, one, kind, shape in found
    )
    return Line(row.label, tuple(marks))


def _table(lines: Sequence[Sequence[str]], name: str, row_at: int) -> str:
    """Scrolls inside itself; `row_at` is the column with the row's name."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in lines[0])
    rows = (
        f'<tr data-row="{escape(line[row_at])}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in line)
        + "</tr>"
        for line in lines[1:]
    )
    return "\n".join(
        (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table>',
            f"<thead><tr>{head}</tr></thead><tbody>",
            *rows,
            "</tbody></table></div>",
        )
    )


def _figure(picture: str, said: str, beside: str = "") -> str:
    caption = f"<figcaption>{escape(said)}</figcaption>"
    region = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(said)}">'
    return f"<figure>{region}\n{picture}</div>{beside}{caption}</figure>"


def _paragraph(said: str) -> str:
    return f"<p>{escape(said)}</p>"


def _how_to_read() -> str:
    """The same words as in Markdown, without its marks."""
    first, _, items = HOW_TO_READ.replace("**", "").replace("`", "").partition("\n\n")
    points = (" ".join(item.split()) for item in items.split("* ") if item.strip())
    listed = "".join(f"<li>{escape(point)}</li>\n" for point in points)
    head = f"<details><summary>How to read it</summary>{_paragraph(first)}"
    return f"{head}<ul>{listed}</ul></details>"
