"""A killed stack run again on its task: the same verdict over today's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kri_core.errors import ConfigError
from kri_core.evaluation.against_random import MIN_SEEDS
from kri_core.evaluation.kills import Kill, Verdict, kill_of, random_null
from kri_core.evaluation.reading import read_record
from kri_core.evaluation.records import Header, Record

CHANGES = (
    ("fingerprint", "another model"),
    ("dtype", "another dtype"),
    ("items_digest", "other items"),
)


def kill_again(
    kill: Kill, header: Header, other: Header | None, paths: Sequence[Path]
) -> tuple[Kill, int, tuple[str, ...]]:
    """What the kill would say of a run of its stack (and the other one).

    Also of how many documents, and in what the run was another one.
    """
    found = [read_record(path) for path in paths]
    record = _row(kill.record, header, found)
    rival = _row(str(kill.other), other, found) if other else None
    if record.header.ranked_by != header.ranked_by:
        raise ConfigError(
            f"the kill is by {header.ranked_by} and this run is ranked by "
            f"{record.header.ranked_by}: it is of another kind of items; give those of then"
        )
    again = kill_of(record, random_null(record, found), rival, Verdict(kill.why, record.date))
    if again.against_other is None and again.against_random is None:
        raise ConfigError(
            f"the run has no random row with the pins of {kill.stack}, so nothing says whether "
            f"the verdict stands; run it with at least {MIN_SEEDS} seeds"
        )
    changed = [
        said for name, said in CHANGES if getattr(record.header, name) != getattr(header, name)
    ]
    return again, len({result.group for result in record.results}), tuple(changed)


def task_again(header: Header, changes: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """A record's task parameters with changes, and how many documents there were."""
    if header.substrate != "hf":
        raise ConfigError(
            f"the record was made on {header.substrate}, and only hf is run again from here; use "
            "eval run with the same stack and task"
        )
    params = {**header.task_params, **changes}
    if "path" in params and "path" not in changes:
        raise ConfigError(
            f"the record knows only the name of its task's file, {params['path']!r}; give it "
            "with --set path=FILE"
        )
    return params, int(params.pop("docs"))


def _row(name: str, header: Header, found: Sequence[Record]) -> Record:
    wanted = (header.role, header.stack, header.probe_set)
    for record in found:
        new = record.header
        if (new.role, new.stack, new.probe_set) == wanted:
            return record
    raise ConfigError(
        f"the run has no row {header.label}, as {name} has; its scorer now reads other probe "
        "texts: run the stack with eval run and kill that"
    )
