"""What a header says of the software: versions, and the commit where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import kri_core
from kri_core.config import CORE
from kri_core.identity import digest
from kri_core.stack import Stack

DIGITS = 8  # of the digest of what is not committed


def code_version() -> str:
    """kri-core's version; in a checkout also its package's commit, and whether it is changed."""
    package = Path(kri_core.__file__).parent
    commit = _git(package, "log", "-1", "--format=%h", "--abbrev=12", "--", ".")
    if not commit or not (package.parent / ".git").exists():
        return kri_core.__version__
    status = _git(package, "status", "--porcelain", "--", ".")
    if not status:
        return f"{kri_core.__version__} {commit}"
    changes = digest(status, _git(package, "diff", "HEAD", "--", "."))[:DIGITS]
    return f"{kri_core.__version__} {commit}, changed {changes}"


def plugin_versions(stack: Stack | None) -> tuple[str, ...]:
    """Distribution and version of each plugin; of a reference row kri-core itself."""
    if stack is None:
        return (f"{CORE} {kri_core.__version__}",)
    members = (stack.split, stack.scorer, stack.selector, *stack.repairs)
    rows = [member.plugin.row for member in members if member is not None]
    return tuple(sorted({f"{row.distribution} {row.version}" for row in rows}))


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
