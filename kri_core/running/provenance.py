"""What a header says of the software: versions, and digests of the code that was run."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import kri_core
from kri_core.config import CORE
from kri_core.identity import digest
from kri_core.registry import PluginRow
from kri_core.stack import Stack

DIGITS = 8  # of a digest of code


def code_version() -> str:
    """kri-core's version, what its code is, and in a checkout its package's last commit."""
    package = Path(kri_core.__file__).parent
    checkout = (package.parent / ".git").exists()
    commit = _git(package, "log", "-1", "--format=%h", "--abbrev=12", "--", ".") if checkout else ""
    return " ".join(part for part in (kri_core.__version__, core_digest(), commit) if part)


def core_digest() -> str:
    """What kri-core's own code is."""
    return _source_digest(kri_core.__name__)


def plugin_versions(stack: Stack | None, *others: PluginRow) -> tuple[str, ...]:
    """Distribution and version of each plugin of a stack, and of others that had a part."""
    rows = [*others]
    if stack is not None:
        members = (stack.split, stack.scorer, stack.selector, *stack.repairs)
        rows += [member.plugin.row for member in members if member is not None]
    named = {named_version(row) for row in rows}
    return tuple(sorted(named)) or (f"{CORE} {kri_core.__version__}",)


def named_version(row: PluginRow) -> str:
    """A plugin's distribution and version, and what its code is, as an edit leaves a version."""
    named = f"{row.distribution} {row.version}"
    if row.distribution == CORE:  # see code_version
        return named
    return f"{named} {_source_digest(row.entry_point.module.partition('.')[0])}"


@cache
def _source_digest(package: str) -> str:
    """Of a package's Python files, or of a module's one."""
    spec = find_spec(package)
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    if spec is not None and not folders and spec.origin:
        files = [Path(spec.origin)]
    return digest([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])[:DIGITS]


def _git(folder: Path, *arguments: str) -> str:
    """What git says; nothing where there is no git or no checkout."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
