"""SVG by hand: scales, marks and interval plots. Coordinates are rounded, so that bytes agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from attrs import frozen

LABELS = 310  # pixels of the names beside an interval plot
WIDTH = 760
ROW = 18  # height of a name's line
SHAPES = ("circle", "square", "triangle", "diamond")
SHOWN = 46  # letters of a name; all of it is in its title


@frozen
class Mark:
    """A mean with its interval; `kind` is a class of the page's style."""

    low: float
    mean: float
    high: float
    kind: str
    shape: str
    title: str


@frozen
class Line:
    """A name and its marks, one above the other."""

    label: str
    marks: tuple[Mark, ...]


def number(value: float) -> str:
    """A coordinate: one digit, and no −0, which another machine may not have."""
    return f"{round(value, 1) + 0.0:.1f}"


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From values to pixels; what lies outside is drawn at the edge."""

    def place(value: float) -> float:
        inside = min(max(value, low), high)
        return start + (inside - low) / (high - low) * (end - start)

    return place


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Four to ten round numbers."""
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if high - low <= 10 * s)
    first = round(low / step)
    found = (round(n * step, 2) for n in range(first, round(high / step) + 1))
    return tuple(value for value in found if low <= value <= high)


def svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """One picture, a line to each of its parts."""
    size = f'viewBox="0 0 {number(width)} {number(height)}"'
    return "\n".join((f'<svg {size} role="img" aria-label="{escape(label)}">', *parts, "</svg>"))


def text(x: float, y: float, shown: str, anchor: str = "start") -> str:
    """Words at a place."""
    place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(shown)}</text>"


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {ends} class="{kind}"/>'


def shape(x: float, y: float, name: str) -> str:
    """A mark that colour alone does not tell from others."""
    if name == "circle":
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="3.5"/>'
    corners = {
        "square": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        "triangle": ((0, -4), (4, 3), (-4, 3)),
        "diamond": ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)),
    }[name]
    points = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in corners)
    return f'<polygon points="{points}"/>'


def group(kind: str, row: str, title: str, parts: Sequence[str]) -> str:
    """What belongs to one row, with what is shown when it is pointed at."""
    held = f'class="{kind}" data-row="{escape(row)}"'
    return f"<g {held}><title>{escape(title)}</title>{''.join(parts)}</g>"


def interval_plot(
    label: str, lines: Sequence[Line], low: float, high: float, at: Sequence[float]
) -> str:
    """A horizontal interval per mark, over an axis from low to high with rules `at` values."""
    across = scale(low, high, LABELS, WIDTH - 20)
    height = 30 + ROW * len(lines)
    grid = [rule(across(v), 20, across(v), height - 8, "grid") for v in ticks(low, high)]
    names = [text(across(v), 14, f"{v:g}", "middle") for v in ticks(low, high)]
    rules = [rule(across(v), 20, across(v), height - 8, "zero") for v in at]
    rows = [part for n, line in enumerate(lines) for part in _row(line, 32 + ROW * n, across)]
    return svg(WIDTH, height, label, (*grid, *names, *rules, *rows))


def _row(line: Line, middle: float, across: Callable[[float], float]) -> Iterator[str]:
    name = line.label if len(line.label) <= SHOWN else line.label[: SHOWN - 1] + "…"
    yield group("name", line.label, line.label, [text(LABELS - 10, middle + 4, name, "end")])
    for n, mark in enumerate(line.marks):
        y = middle + 6 * n - 3 * (len(line.marks) - 1)
        whisker = rule(across(mark.low), y, across(mark.high), y, "whisker")
        parts = (whisker, shape(across(mark.mean), y, mark.shape))
        yield group(mark.kind, line.label, mark.title, parts)
