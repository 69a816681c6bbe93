"""Opening an artifact: regular files only, through one descriptor, every fault one line."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kri_core.errors import ArtifactError, KriError

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of every complaint about what is in it."""
    try:
        yield
    except KriError as error:
        name = "".join(char if char.isprintable() else "?" for char in str(path))  # one line
        raise ArtifactError(f"{name}: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes; a pipe, socket, device or directory is refused without waiting on it."""
    try:
        _check_kind(path.stat())
        # O_NONBLOCK: a pipe that took the file's place since must not block the open
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ArtifactError(
            f"cannot be opened ({error.strerror}); check the path and its permissions"
        ) from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        _check_kind(os.fstat(descriptor))
        if hasattr(os, "posix_fadvise"):  # no reading ahead: few want what follows a header
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        yield file


def _check_kind(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "a device")
        raise ArtifactError(f"is {kind}, not a regular file; give the artifact's own path")
    if found.st_size == 0:
        raise ArtifactError("has zero bytes; write or copy it again")


def file_state(found: os.stat_result) -> tuple[int, int, int, int]:
    """What changes when a file is replaced or rewritten."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
