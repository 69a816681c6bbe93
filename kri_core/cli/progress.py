"""Progress on stderr: bars with an ETA on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click
from attrs import Factory, define

EVERY = 10.0  # seconds between lines where there is no terminal


@define(eq=False)
class Progress:
    """Takes reports of named work; each name gets a bar, or an ETA, of its own."""

    bars: ExitStack
    name: str | None = None
    bar: Any = None  # click's progress bar, on a terminal
    started: float = 0.0
    reported: float = Factory(time.monotonic)
    printed: float = Factory(time.monotonic)

    def __call__(self, name: str, done: int, total: int) -> None:
        """Units done of the named work; what follows a slash in the name is not shown."""
        if name != self.name:
            self._begin(name, total)
        self.reported = time.monotonic()
        if self.bar is not None:
            self.bar.update(done - self.bar.pos)
        elif self.reported - self.printed >= EVERY:
            self.printed = self.reported
            left = (self.reported - self.started) / done * (total - done)
            click.echo(f"{name.split('/')[0]}: {done} of {total}, {left:.0f} s left", err=True)

    def _begin(self, name: str, total: int) -> None:
        self.name, self.started = name, self.reported
        if sys.stderr.isatty():
            self.bars.close()
            label = name.split("/")[0]
            bar = click.progressbar(length=total, label=label, file=sys.stderr, show_eta=True)
            self.bar = self.bars.enter_context(bar)


@contextmanager
def progress() -> Iterator[Progress]:
    """A callback to report (name, done, total) to."""
    with ExitStack() as bars:
        yield Progress(bars)
