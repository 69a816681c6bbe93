"""What a header says of the software: versions, and digests of the code that was run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import kri_core
from kri_core.config import CORE
from kri_core.registry import PluginRow
from kri_core.stack import Stack
from kri_core.versions import core_version, named_version


def code_version() -> str:
    """kri-core's version, what its code is, and in a checkout its package's last commit."""
    package = Path(kri_core.__file__).parent
    checkout = (package.parent / ".git").exists()
    commit = _git(package, "log", "-1", "--format=%h", "--abbrev=12", "--", ".") if checkout else ""
    return " ".join(part for part in (core_version(), commit) if part)


def plugin_versions(stack: Stack | None, *others: PluginRow) -> tuple[str, ...]:
    """Distribution and version of each plugin of a stack, and of others that had a part."""
    rows = [*others]
    if stack is not None:
        members = (stack.split, stack.scorer, stack.selector, *stack.repairs)
        rows += [member.plugin.row for member in members if member is not None]
    named = {named_version(row) for row in rows}
    return tuple(sorted(named)) or (f"{CORE} {kri_core.__version__}",)


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
