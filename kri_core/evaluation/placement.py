"""What of a stack's gain is where it looks, and what is which blocks it chose there.

A placement row has the blocks that the stack kept of the next document: its habits of position
without this document's content. Placement is that row less random blocks without pins; content is
the stack less that row; both item by item.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kri_core.errors import ArtifactError
from kri_core.evaluation.records import Record
from kri_core.evaluation.statistics import Estimate, Sample, estimate


@frozen
class Placement:
    """The two parts of a stack's gain over random blocks without pins."""

    placement: Estimate
    content: Estimate
    record: str
    seal: str


def placement_of(
    record: Record, placements: Sequence[Record], unpinned: Sample | None
) -> Placement | None:
    """The parts of one stack's gain; None without its placement row."""
    found = next((one for one in placements if _row(one) == _row(record)), None)
    if found is None:
        return None
    if unpinned is None:
        raise ArtifactError(
            f"{found.name} is the placement of {record.header.label}, but there is no random "
            f"selector without pins and of budget {record.header.budget}; run one"
        )
    score = record.header.ranked_by
    there = found.sample(score)
    return Placement(
        estimate(there.minus(unpinned)),
        estimate(record.sample(score).minus(there)),
        found.name,
        found.seal,
    )


def check_placements(placements: Sequence[Record], stacks: Sequence[Record]) -> None:
    """Every placement row is of a stack that is there."""
    rows = [_row(record) for record in stacks]
    for record in placements:
        if _row(record) not in rows:
            raise ArtifactError(
                f"{record.name} is the placement of {record.header.label}, which is not among "
                "these records; give that one too"
            )


def _row(record: Record) -> tuple[object, ...]:
    return record.header.label, record.header.pins
