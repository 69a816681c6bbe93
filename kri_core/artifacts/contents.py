"""A file of named texts and tensors, whichever of the two formats its suffix says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kri_core.artifacts import safetensors_file, torch_file
from kri_core.artifacts.atomic import check_replaceable, replacing
from kri_core.artifacts.opening import naming, opened
from kri_core.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor


def is_safetensors(path: Path) -> bool:
    """The format by suffix: .safetensors or .pt, anything else is refused."""
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", ".pt"):
        raise ArtifactError(f"has suffix {suffix!r}; name it .safetensors or .pt")
    return suffix == ".safetensors"


def check_target(path: Path) -> None:
    """Refuse a file name that cannot be written to before the work, not after it."""
    with naming(path):
        is_safetensors(path)
        if not path.parent.is_dir():
            raise ArtifactError(f"cannot be written: there is no folder {path.parent}; make it")
        check_replaceable(path)
        if not os.access(os.path.realpath(path.parent), os.W_OK | os.X_OK):
            raise ArtifactError(
                f"cannot be written: the folder {path.parent} is read-only; choose another"
            )


def read_fields(path: Path) -> Mapping[str, object]:
    """Names to texts and mapped tensors; in a .pt also to plain lists, dicts and numbers."""
    if is_safetensors(path):
        with opened(path) as file:
            index = safetensors_file.read_index(file)
            tensors = safetensors_file.map_tensors(file, index.entries)
        return {**index.metadata, **tensors}
    held = torch_file.load(path)
    if not isinstance(held, dict) or not all(isinstance(name, str) for name in held):
        raise ArtifactError(
            f"holds a {type(held).__name__}, wanted a dict of names; write it again"
        )
    return held


def read_texts(path: Path) -> Mapping[str, object]:
    """As read_fields; from a .safetensors only the texts, without importing torch."""
    if not is_safetensors(path):
        return read_fields(path)
    with opened(path) as file:
        return safetensors_file.read_index(file).metadata


def write_fields(path: Path, texts: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """Write whole or not at all; into a .safetensors every text must be a str."""
    safe = is_safetensors(path)
    with replacing(path) as file:
        if safe:
            named = {name: str(text) for name, text in texts.items()}
            safetensors_file.write(file, named, tensors)
        else:
            torch_file.save({**texts, **tensors}, file)
