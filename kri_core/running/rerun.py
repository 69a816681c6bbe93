"""A killed stack run again on its task: whether it is still no better than random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.kills import Against, random_null
from kri_core.evaluation.reading import read_record
from kri_core.evaluation.records import Header, Record, check_complete
from kri_core.evaluation.statistics import Estimate, estimate


@frozen
class Again:
    """The new numbers beside which the old verdict is read."""

    record: Record
    score: Estimate
    against: Against

    @classmethod
    def of(cls, header: Header, paths: Sequence[Path]) -> Again:
        """From the records of a run of the killed header's stack."""
        found = [check_complete(read_record(path)) for path in paths]
        wanted = (header.role, header.stack, header.probe_set)
        for record in found:
            new = record.header
            null = random_null(record, found)
            if (new.role, new.stack, new.probe_set) == wanted and null is not None:
                sample = record.sample(new.ranked_by)
                against = Against.of(sample.minus(null.sample(new.ranked_by)))
                return cls(record, estimate(sample), against)
        raise ConfigError(
            f"the run has no row {header.label}, as the kill's record has; its scorer now reads "
            "other probe texts: run the stack with eval run and kill that"
        )


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
