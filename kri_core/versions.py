"""Which code runs here: versions, and digests, as an edit leaves a version as it is."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import kri_core
from kri_core.config import CORE
from kri_core.identity import digest
from kri_core.registry import PluginRow, Registry

DIGITS = 8  # of a digest of code


def core_version() -> str:
    """kri-core's version and what its code is."""
    return f"{kri_core.__version__} {_source_digest(kri_core.__name__)}"


def named_version(row: PluginRow) -> str:
    """A plugin's distribution and version, and what its code is."""
    named = f"{row.distribution} {row.version}"
    if row.distribution == CORE:  # see core_version
        return named
    return f"{named} {_source_digest(row.entry_point.module.partition('.')[0])}"


def installed_versions() -> tuple[str, ...]:
    """Of every plugin that a stack could name here."""
    rows = [row for row in Registry.discover().rows if row.state in ("ok", "conflict")]
    return tuple(sorted({named_version(row) for row in rows}))


@cache
def _source_digest(package: str) -> str:
    """Of a package's Python files, or of a module's one."""
    spec = find_spec(package)
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    if spec is not None and not folders and spec.origin:
        files = [Path(spec.origin)]
    return digest([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])[:DIGITS]
