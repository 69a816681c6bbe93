"""What keeps records from being one board, in a line that names the two that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from kri_core.errors import ArtifactError
from kri_core.evaluation.records import Record


def only(records: Sequence[Record], role: str) -> Record:
    """The record of a role that a task has one of."""
    found = [record for record in records if record.header.role == role]
    if len(found) == 1:
        return found[0]
    names = " and ".join(sorted(record.name for record in found)) or "there is none"
    raise ArtifactError(
        f"a board of {records[0].header.task} needs exactly one record of role {role}; got {names}"
    )


def check_one(records: Sequence[Record], names: Sequence[str], what: str) -> None:
    """All records agree in these fields of their headers."""
    first = records[0]
    for name in names:
        for other in records[1:]:
            mine, theirs = getattr(first.header, name), getattr(other.header, name)
            if mine != theirs:
                raise ArtifactError(
                    f"{first.name} and {other.name} differ in {name} ({mine} and {theirs}); "
                    f"{what} is of one: give the records of one"
                )


def check_rows_differ(records: Sequence[Record]) -> None:
    """Two records of one row would leave it to chance which is shown."""
    seen: dict[object, Record] = {}
    for record in records:
        header = record.header
        name = None if header.role == "random" else header.label  # of its pins there is one null
        other = seen.setdefault((header.role, name, header.pins), record)
        if other is not record:
            raise ArtifactError(
                f"{other.name} and {record.name} are both the row {header.label!r}; they differ "
                f"in {other.header.difference(header) or 'nothing'}: give one"
            )
