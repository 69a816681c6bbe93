"""Files that appear whole or not at all: a temporary file beside the target, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kri_core.errors import ArtifactError


def check_replaceable(path: Path) -> None:
    """Refuse what a rename would destroy (a device, a pipe, a socket) or could not replace."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(error) from error
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
        raise ArtifactError(f"cannot be written: it is {what}; give another name")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; it takes the target's place when the block ends without an error.

    A process killed in between leaves at most `.<name>.<random>.tmp`, which no reader accepts.
    A symbolic link stays one; what it points at is replaced.
    """
    check_replaceable(path)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise _unwritable(error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _unwritable(error: OSError) -> ArtifactError:
    return ArtifactError(
        f"cannot be written ({error.strerror}); free space or choose a place that can be written to"
    )


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
