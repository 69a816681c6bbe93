"""Writing a record line by line, and going on where a killed run stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from attrs import define

from kri_core.artifacts.opening import naming
from kri_core.errors import ArtifactError
from kri_core.evaluation.chain import first_line, linked_line, start_link
from kri_core.evaluation.reading import parse_record, whole_lines
from kri_core.evaluation.records import Header, Result, file_name


@define(eq=False)
class Recorder:
    """A record that grows by one line per item."""

    path: Path
    header: Header
    done: set[tuple[str, int]]  # (id, seed) of the items that are there and need no second run
    _file: BinaryIO
    _seal: str

    def append(self, result: Result) -> None:
        """Write an item's line through to the system, so that a kill leaves it or half of it."""
        if result.key in self.done or result.seed not in self.header.seeds:
            raise ArtifactError(
                f"{self.path.name}: item {result.id!r} with seed {result.seed} is recorded already "
                f"or not of the header's seeds {list(self.header.seeds)}; append each once"
            )
        line, seal = linked_line(result, self._seal)
        self._file.write(f"{line}\n".encode())
        self._file.flush()
        self._seal = seal
        self.done.add(result.key)


@contextmanager
def recording(folder: Path, header: Header, today: str) -> Iterator[Recorder]:
    """The record of exactly this header in a folder, new or gone on with; `today` names a new one.

    Another header, be it by one seed, is another file: nothing of it is reused. Half a last line,
    which a kill leaves, is cut off. One process at a time.
    """
    path = _path(folder, header, today)
    with path.open("a+b") as file:
        with naming(path):
            lock(file)
            recorder = _resumed(path, file, header, today)
        yield recorder


def _path(folder: Path, header: Header, today: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    end = file_name(header, today).removeprefix(today)
    found = sorted(folder.glob(f"????-??-??{end}"))
    if len(found) > 1:
        raise ArtifactError(
            f"{' and '.join(path.name for path in found)} are of one configuration; delete one"
        )
    return found[0] if found else folder / f"{today}{end}"


def _resumed(path: Path, file: BinaryIO, header: Header, today: str) -> Recorder:
    file.seek(0)
    lines, end = whole_lines(file.read())
    file.truncate(end)
    if not lines:
        line = first_line(header, today)
        file.write(f"{line}\n".encode())
        file.flush()
        return Recorder(path, header, set(), file, start_link(line))
    record = parse_record(path.name, lines)
    if record.header != header:
        raise ArtifactError(
            f"is of another run ({header.difference(record.header)} differs), so nothing of it is "
            "reused; move it away"
        )
    return Recorder(path, header, {result.key for result in record.results}, file, record.seal)


def lock(file: BinaryIO) -> None:
    """Two processes would put their lines between each other's."""
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ArtifactError(
            "is being written by another process; wait for it, or give another --out"
        ) from error
