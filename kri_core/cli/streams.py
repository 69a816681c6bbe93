"""stdin, stdout and stderr when they are closed, full, or in a locale without UTF-8."""

from __future__ import annotations

import os
import sys
from typing import TextIO

# What stands in for a closed stream; reading or writing it fails like the closed one did. Only of
# stderr nothing could be said, so it takes everything.
STAND_INS = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def hold_streams() -> None:
    """Have three open streams that can write every character.

    Else the next file that is opened takes the number of a closed one, and its output.
    """
    for number, (name, flags) in enumerate(STAND_INS):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def drop(stream: TextIO) -> None:
    """Send what a stream still holds nowhere: at exit Python would fail on it once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
