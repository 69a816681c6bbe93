"""torch.save's zip archives: mapped, and never unpickled beyond plain tensors and containers."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from kri_core.artifacts.opening import identity, opened
from kri_core.errors import ArtifactError

MAX_TRIES = 20  # a file replaced this often in a row while it was being opened is given up
END_RECORD = (b"PK\5\6", 22)  # zip's last record: its mark and, without a comment, its length
_CONVERT_SAFELY = (
    "to convert it, torch.load(weights_only=False) it where nothing can be lost (a container "
    "without network) and torch.save its plain tensors, lists and dicts"
)


def load(path: Path, allowed: Iterable[type] = ()) -> object:
    """What the file holds, its tensors mapped: no byte of them is read until it is looked at.

    torch opens the file twice by name, once for the pickle and once for the tensors. A file that
    was replaced in between is opened again, so that both are of one file.
    """
    for _ in range(MAX_TRIES):
        with opened(path) as file:  # held open, so that no other file gets this one's inode
            before = identity(os.fstat(file.fileno()))
            try:
                _check_archive(file)
                value = _load(path, list(allowed))
            except ArtifactError:
                if _is_still(path, before):
                    raise
            else:
                if _is_still(path, before):
                    return value
    raise ArtifactError(f"was replaced {MAX_TRIES} times while being opened; try again later")


def _is_still(path: Path, before: tuple[int, ...]) -> bool:
    try:
        return identity(path.stat()) == before
    except OSError:
        return False


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
    except (zipfile.BadZipFile, ValueError) as error:
        raise ArtifactError(f"is a damaged zip archive ({error}); copy it again") from error
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise ArtifactError("has compressed records, which cannot be mapped; torch.save it again")


def _load(path: Path, allowed: list[Any]) -> object:
    import torch

    with torch.serialization.safe_globals(allowed):
        try:
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except pickle.UnpicklingError as error:
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            asked = f" (it asks for {', '.join(sorted(unsafe))})" if unsafe else ""
            raise ArtifactError(
                f"holds a pickle that could run code{asked}; it was not run, and {_CONVERT_SAFELY}"
            ) from error
        except Exception as error:  # a damaged or hostile pickle can raise anything
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ArtifactError(f"cannot be loaded ({reason}); write or copy it again") from error


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
