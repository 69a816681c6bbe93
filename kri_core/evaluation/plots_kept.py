"""Accuracy against the kept fraction: every stack of one task, a family's budgets joined."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise

from kri_core.evaluation.board import Board
from kri_core.evaluation.board_words import interval, mean
from kri_core.evaluation.equal_bytes import bytes_share
from kri_core.evaluation.plots import (
    SHAPES,
    WIDTH,
    group,
    rule,
    scale,
    shape,
    svg,
    text,
    ticks,
)
from kri_core.evaluation.rows import Row

COLOURS = 6  # of Okabe and Ito, without yellow and black, which one of two backgrounds hides
HEIGHT = 420
TOP, BOTTOM, LEFT, RIGHT = 16, HEIGHT - 44, 44, WIDTH - 30
SPREAD = 90  # pixels that the rows of one budget are spread over, so that each can be pointed at
Place = tuple[Row, float, float]


def family(label: str) -> str:
    """A stack's name without its budget."""
    label = re.sub(r"^(A\d+R\d+)K\d+", r"\1", label)
    return re.sub(r"^(recency|hybrid)\[[^]]*\]", r"\1", label)


def coloured(boards: Sequence[Board]) -> dict[str, int]:
    """The families with the best rows, each with its colour."""
    best: dict[str, float] = {}
    for board in boards:
        for row in board.rows:
            name, value = family(row.label), row.scores[board.ranked_by].mean
            best[name] = max(value, best.get(name, value))
    order = sorted(best, key=lambda name: (-best[name], name))
    return {name: colour for colour, name in enumerate(order[:COLOURS])}


def kept_plot(boards: Sequence[Board]) -> str:
    """All boards of one task in one picture."""
    score = boards[0].ranked_by
    rows = [row for board in boards for row in _all(board)]
    found = [row.scores[score] for row in rows]
    low, high = min(0.0, *(one.low for one in found)), max(1.0, *(one.high for one in found))
    least = min(_share(row) for row in rows if _share(row))
    across = scale(math.log2(least) - 0.7, 0.2, LEFT, RIGHT)
    up = scale(low, high, BOTTOM, TOP)
    parts = (
        *_axes(boards, across, up, ticks(low, high)),
        *_levels(boards[0], up),
        *_series(boards, across, up),
    )
    return svg(WIDTH, HEIGHT, f"{score} against the kept fraction, per stack", parts)


def _share(row: Row) -> float:
    """Of the blocks, or of the bytes where all blocks are quantised: what a row holds."""
    return bytes_share(row.label) or row.kept_fraction


def _all(board: Board) -> tuple[Row, ...]:
    return (*board.rows, *board.references, *board.nulls)


def _axes(
    boards: Sequence[Board],
    across: Callable[[float], float],
    up: Callable[[float], float],
    values: Sequence[float],
) -> Iterator[str]:
    for value in values:
        yield rule(LEFT, up(value), RIGHT, up(value), "grid")
        yield text(LEFT - 6, up(value) + 4, f"{value:g}", "end")
    for power in range(-10, 1):
        x = across(power)
        if LEFT < x < RIGHT:
            yield rule(x, TOP, x, BOTTOM, "grid")
            yield text(x, BOTTOM + 16, f"{100 * 2.0**power:g} %", "middle")
    said = "blocks kept, or bytes where quantised (log scale)"
    yield text((LEFT + RIGHT) / 2, HEIGHT - 8, said, "middle")


def _levels(board: Board, up: Callable[[float], float]) -> Iterator[str]:
    score = board.ranked_by
    levels = [("full attention", board.full.scores[score].mean, LEFT + 4, "start")]
    levels.append(("floor: no document", board.floor.scores[score].mean, LEFT + 4, "start"))
    if board.chance is not None:
        levels.append(("chance", board.chance, RIGHT, "end"))
    for name, value, x, anchor in levels:
        parts = (
            rule(LEFT, up(value), RIGHT, up(value), "level"),
            text(x, up(value) - 4, name, anchor),
        )
        yield group("reference", "", f"{name}: {value:.3f}", parts)


def _series(
    boards: Sequence[Board], across: Callable[[float], float], up: Callable[[float], float]
) -> Iterator[str]:
    colours, score = coloured(boards), boards[0].ranked_by
    by_family: dict[str, list[Place]] = {}
    for place in _placed(boards, across):
        by_family.setdefault(family(place[0].label), []).append(place)
    order = sorted(by_family, key=lambda name: (name in colours, name))  # coloured ones on top
    for name in order:
        kind, mark = _look(name, by_family[name][0][0], colours)
        for (one, x1, y1), (other, x2, y2) in pairwise(by_family[name]):
            if _share(one) != _share(other):
                line = rule(x1, up(y1), x2, up(y2), "joined")
                yield group(kind, one.label, name, [line])
        for row, x, y in by_family[name]:
            found = row.scores[score]
            parts = (rule(x, up(found.low), x, up(found.high), "whisker"), shape(x, up(y), mark))
            what = "of the bytes" if bytes_share(row.label) else "kept"
            said = f"{row.label}: {mean(found)} {interval(found)}, {_share(row):.1%} {what}"
            yield group(kind, row.label, said, parts)


def _placed(boards: Sequence[Board], across: Callable[[float], float]) -> Iterator[Place]:
    """All boards' rows; a quantised one, which several boards have, once."""
    seen: set[str] = set()
    for board in boards:
        for place in _places(board, across):
            label = place[0].label
            if label not in seen or not bytes_share(label):
                yield place
            seen.add(label)


def _places(board: Board, across: Callable[[float], float]) -> Iterator[Place]:
    """Rows, each with its x and its mean; spread sideways by their mean."""
    score = board.ranked_by
    rows = sorted(_all(board), key=lambda row: (row.scores[score].mean, row.label))
    step = min(7.0, SPREAD / len(rows))
    for n, row in enumerate(rows):
        if _share(row):
            x = across(math.log2(_share(row))) + step * (n - (len(rows) - 1) / 2)
            yield row, min(x, RIGHT), row.scores[score].mean


def _look(name: str, row: Row, colours: dict[str, int]) -> tuple[str, str]:
    if row.role == "random":
        return "random", "square"
    if row.role == "reference":
        return "reference", "diamond"
    if name not in colours:
        return "other", "circle"
    return f"c{colours[name]}", SHAPES[colours[name] % len(SHAPES)]


def legend(boards: Sequence[Board]) -> str:
    """The coloured families with their marks, then what the rest is."""
    entries = [
        (f"c{colour}", SHAPES[colour % len(SHAPES)], name)
        for name, colour in coloured(boards).items()
    ]
    entries += [("other", "circle", "other stacks"), ("random", "square", "random blocks")]
    entries.append(("reference", "diamond", "references, such as the oracles"))
    items = []
    for kind, mark, name in entries:
        picture = f'<svg viewBox="0 0 12 12" aria-hidden="true"><g class="{kind}">'
        drawn = f"{picture}{shape(6, 6, mark)}</g></svg>"
        items.append(f"<li>{drawn}{escape(name)}</li>")
    return '<ul class="legend">' + "\n".join(items) + "</ul>"
