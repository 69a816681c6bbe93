"""A record's header: everything that decides what its items are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from kri_core.evaluation.records import Header
from kri_core.evaluation.tasks import Scores, load_task
from kri_core.evaluation.tasks.loading import task_row
from kri_core.identity import digest
from kri_core.registry import PluginRow, Registry
from kri_core.running.crossing import Job, Prepared, Reported
from kri_core.running.planning import PlannedRow
from kri_core.running.provenance import code_version, plugin_versions
from kri_core.running.worker import text_params
from kri_core.stack import Stack

BAKED = ("stack", "placement")  # rows that a stack chooses


@frozen
class Facts:
    """What all rows of a run share."""

    task: str
    task_params: Mapping[str, str]
    model: str
    said: Reported
    prepared: tuple[Prepared, ...]
    plugin: PluginRow  # the task's
    code: str

    @classmethod
    def of(
        cls,
        job: Job,
        said: Reported,
        model: str,
        prepared: Sequence[Prepared],
        registry: Registry,
    ) -> Facts:
        """The task's parameters with their defaults; the number of documents as it is."""
        params = text_params(load_task(job.task, dict(job.task_params), registry))
        params["docs"] = str(len(prepared))
        plugin = task_row(job.task, registry)
        return cls(plugin.name, params, model, said, tuple(prepared), plugin, code_version())

    @property
    def chance(self) -> Scores:
        """What guessing scores on average over all items."""
        shared = set.intersection(*(set(one.chances) for one in self.prepared))
        count = sum(len(one.items) for one in self.prepared)
        return {
            name: sum(one.chances[name] * len(one.items) for one in self.prepared) / count
            for name in sorted(shared)
        }


def header_of(row: PlannedRow, stack: Stack | None, facts: Facts) -> Header:
    """The header of one row."""
    anchor, recent, budget = row.pins
    stack = stack if row.kind in BAKED else None
    return Header(
        task=facts.task,
        task_params=facts.task_params,
        items_digest=digest([one.digest for one in facts.prepared]),
        num_items=sum(len(one.items) for one in facts.prepared),
        ranked_by=facts.prepared[0].ranked_by,
        chance=facts.chance,
        role=row.role,
        stack=row.name,
        anchor=anchor,
        recent=recent,
        budget=budget,
        seeds=row.seeds,
        plugins=plugin_versions(stack, facts.plugin),
        probe_set=row.probe_set,
        cartridges=digest([one.sha256 for one in facts.prepared]),
        priors=_priors(row, stack, facts.prepared),
        model=facts.model,
        fingerprint=facts.said.fingerprint,
        dtype=facts.said.dtype,
        substrate=facts.said.substrate,
        code=facts.code,
        machine=facts.said.machine,
    )


def has_priors(row: PlannedRow, stack: Stack | None, prepared: Sequence[Prepared]) -> bool:
    """Whether every document is baked: a record without one could never be finished."""
    return None not in _priors_of(row, stack, prepared)


def _priors(row: PlannedRow, stack: Stack | None, prepared: Sequence[Prepared]) -> str | None:
    """One digest of the scorer's priors."""
    found = _priors_of(row, stack, prepared)
    return digest(found) if found else None


def _priors_of(
    row: PlannedRow, stack: Stack | None, prepared: Sequence[Prepared]
) -> list[str | None]:
    """The digests of the scorer's priors in the order of documents; nothing without a scorer."""
    if stack is None or stack.scorer is None or row.kind not in BAKED:
        return []
    scorer, sets = str(stack.scorer.ref), prepared[0].probe_sets
    probe_set = row.probe_set or next(iter(sets), None)
    return [one.priors.get((scorer, probe_set)) for one in prepared]
