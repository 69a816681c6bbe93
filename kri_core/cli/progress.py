"""Progress and the time left on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any

import click
from attrs import Factory, define

EVERY = 10.0  # seconds between lines where there is no terminal


@define(eq=False)
class Progress:
    """Takes reports of named work; each name gets a bar, or lines, of its own."""

    bars: ExitStack
    name: str | None = None
    bar: Any = None  # click's progress bar, on a terminal
    started: float = 0.0
    reported: float = Factory(time.monotonic)
    printed: float = Factory(time.monotonic)

    def __call__(self, name: str, done: int, total: int, at_once: int = 1) -> None:
        """Units done of the named work; what follows a slash in the name is not shown."""
        now = time.monotonic()
        if name != self.name:
            self._begin(name, total, self.reported if done else now)
        self.reported = now
        left = seconds_left(now - self.started, done, total, at_once)
        shown = "" if left is None else f"{left:.0f} s left"
        if self.bar is not None:
            self.bar.update(done - self.bar.pos, shown)
        elif now - self.printed >= EVERY:
            self.printed = now
            click.echo(
                ", ".join(filter(None, (f"{_shown(name)}: {done} of {total}", shown))), err=True
            )

    def _begin(self, name: str, total: int, started: float) -> None:
        self.name, self.started = name, started
        if sys.stderr.isatty():
            self.bars.close()
            bar: Any = click.progressbar(
                length=total,
                label=_shown(name),
                file=sys.stderr,
                show_eta=False,  # click's goes by the last reports, and these come in bursts
                item_show_func=lambda left: left,
            )
            self.bar = self.bars.enter_context(bar)


def seconds_left(elapsed: float, done: int, total: int, at_once: int) -> float | None:
    """By waves of units that are worked on together: with the first of a wave all are due.

    None where nothing can be said: no unit is done, or the last wave is due and not all of it here.
    """
    waves, all_waves = ceil(done / at_once), ceil(total / at_once)
    if not done or (waves == all_waves and done < total):
        return None
    return elapsed * (all_waves - waves) / waves


def _shown(name: str) -> str:
    return name.split("/")[0]


@contextmanager
def progress() -> Iterator[Progress]:
    """A callback to report (name, done, total), and how many units are worked on at once, to."""
    with ExitStack() as bars:
        yield Progress(bars)
