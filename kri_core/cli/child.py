"""A process of its own for what may hang, end the process, or leave others behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import IO

from attrs import frozen


@frozen
class Done:
    """What a process left: its stdout, and why it did not end well, if so."""

    out: str
    fault: str | None


class Child:
    """Started at once. Its output goes to files, so whoever keeps a pipe open holds nobody up."""

    def __init__(self, command: Sequence[str]) -> None:
        """It sees the modules that this process sees."""
        self._out: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._err: IO[bytes] = TemporaryFile()  # noqa: SIM115
        self._start = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - our own commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )

    def end(self, timeout: float) -> Done:
        """Wait until so many seconds after its start; then end it and all that it has started."""
        with self._out, self._err:
            try:
                left = self._start + timeout - time.monotonic()
                code = self._process.wait(max(left, 0))
            except subprocess.TimeoutExpired:
                return Done(_text(self._out), f"did not end within {timeout:.0f} s")
            finally:
                if self._process.poll() is None:
                    os.killpg(self._process.pid, signal.SIGKILL)
                    self._process.wait()
            fault = f"ended with code {code}{_last_line(self._err)}" if code else None
            return Done(_text(self._out), fault)


def _last_line(file: IO[bytes]) -> str:
    lines = _text(file).strip().splitlines()
    return f": {lines[-1].strip()}" if lines else ""


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
