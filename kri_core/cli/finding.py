"""What `doctor` finds."""

from __future__ import annotations

from typing import Literal

from attrs import frozen


@frozen
class Finding:
    """One thing that was looked at."""

    subject: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    fix: str = ""
