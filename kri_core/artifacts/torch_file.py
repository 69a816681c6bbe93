"""torch.save's zip archives: mapped, and never unpickled beyond plain tensors and containers."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from kri_core.artifacts.opening import file_state, opened
from kri_core.errors import ArtifactError

DESCRIPTORS = Path("/dev/fd")  # where Linux and macOS name a process's open files
END_RECORD = (b"PK\5\6", 22)  # zip's last record: its mark and, without a comment, its length
SMALL = 64 * 1024  # bytes of a record, such as the pickle, that is not worth mapping
_CONVERT_SAFELY = (
    "to convert it, torch.load(weights_only=False) it where nothing can be lost (a container "
    "without network) and torch.save its plain tensors, lists and dicts"
)


def load(path: Path, allowed: Iterable[type] = ()) -> object:
    """What the file holds, its tensors mapped: no byte of them is read until it is looked at.

    torch opens the file twice by name, for the pickle and for the tensors; it is given a name of
    the open descriptor, so that a file replaced in between does not mix with the one before.
    """
    with opened(path) as file:
        _check_archive(file)
        before = file_state(os.fstat(file.fileno()))
        same = DESCRIPTORS / str(file.fileno())
        name = same if same.exists() else path
        value = _load(name, list(allowed))
        if name.exists() and file_state(name.stat()) == before:
            return value
    raise ArtifactError("was replaced while being opened; try again")


def _check_archive(file: BinaryIO) -> None:
    """Only what torch.save writes: no bare pickle, nothing cut off, appended or compressed."""
    start = file.read(len(b"PK\3\4"))
    mark, length = END_RECORD
    if start != b"PK\3\4":
        raise ArtifactError(
            "is not a zip archive as torch.save writes (torch 1.6 or later); a bare pickle is "
            f"never loaded: {_CONVERT_SAFELY}"
        )
    file.seek(-min(length, os.fstat(file.fileno()).st_size), os.SEEK_END)
    if not file.read(length).startswith(mark):
        raise ArtifactError("is cut short or has trailing bytes; write or copy it again")
    try:
        records = zipfile.ZipFile(file).infolist()
        _read_what_torch_reads(file, records)
    except Exception as error:  # zipfile raises half a dozen kinds on damaged archives
        raise ArtifactError(f"is a damaged zip archive ({_line(error)}); copy it again") from error
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise ArtifactError("has compressed records, which cannot be mapped; torch.save it again")


def _read_what_torch_reads(file: BinaryIO, records: Iterable[zipfile.ZipInfo]) -> None:
    """Bring pickle and record headers into memory, so that torch's own reads of them fetch nothing.

    Those would set off the kernel's reading ahead, which this descriptor has switched off.
    """
    for record in records:
        file.seek(record.header_offset)
        wanted = record.file_size if record.file_size < SMALL else 0
        file.read(wanted + io.DEFAULT_BUFFER_SIZE)  # torch's reads run on to the end of a buffer


def _load(path: Path, allowed: list[Any]) -> object:
    import torch

    with torch.serialization.safe_globals(allowed):
        try:
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # a damaged or hostile pickle can raise anything
            asked = re.search(r"GLOBAL (\S+)", str(error))
            if asked and isinstance(error, pickle.UnpicklingError):
                raise ArtifactError(
                    f"holds a pickle that could run code (it asks for {asked[1]}); it was not run, "
                    f"and {_CONVERT_SAFELY}"
                ) from error
            raise ArtifactError(
                f"cannot be loaded ({_line(error)}); write or copy it again"
            ) from error


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def save(value: Mapping[str, object], file: BinaryIO) -> None:
    """Write a dict; a tensor that is a view of something larger is copied, no other one is."""
    import torch

    whole = {
        name: item.clone()
        if isinstance(item, torch.Tensor) and item.untyped_storage().nbytes() != item.nbytes
        else item
        for name, item in value.items()
    }
    try:
        torch.save(whole, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch hides a full disk behind its own error
            raise error.__context__ from error
        raise
