"""Rows against the whole document in as many bits as the bytes of the kept blocks hold (EVAL 2)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import frozen

from kri_core.evaluation.records import Record
from kri_core.evaluation.statistics import Estimate, estimate


@frozen
class EqualBytes:
    """A stack less the quantised document of its budget, item by item."""

    quantised: str
    difference: Estimate
    bytes_share: float  # of the whole document; 2 bits may take more than the kept blocks
    record: str
    seal: str


def quantised_name(bits: int, bytes_share: float) -> str:
    """What a table calls the row."""
    return f"quantised[bits={bits},bytes={bytes_share:.3f}]"


def bytes_share(label: str) -> float | None:
    """The share of the bytes that a quantised row says; None of any other row."""
    found = re.fullmatch(r"quantised\[bits=\d+,bytes=(\d+\.\d+)\]", label)
    return float(found[1]) if found else None


def equal_bytes_of(record: Record, references: Sequence[Record]) -> EqualBytes | None:
    """One stack beside the quantised document of its budget; None without it."""
    for other in references:
        share = bytes_share(other.header.label)
        if share is not None and other.header.budget == record.header.budget:
            score = record.header.ranked_by
            difference = estimate(record.sample(score).minus(other.sample(score)))
            return EqualBytes(other.header.label, difference, share, other.name, other.seal)
    return None


def shown_once(references: Sequence[Record]) -> list[Record]:
    """Without what is there for all budgets where this budget has the same row of its own."""
    own = {one.header.label for one in references if one.header.budget is not None}
    return [
        one for one in references if one.header.budget is not None or one.header.label not in own
    ]
