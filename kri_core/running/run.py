"""A whole run: prepare every document, plan the rows, answer what is not yet recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from attrs import evolve, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.recording import Recorder, recording
from kri_core.evaluation.records import Result
from kri_core.evaluation.tasks.references import position_matched
from kri_core.registry import Registry
from kri_core.running.crossing import Failure, Job, Prepared
from kri_core.running.documents import keep_documents
from kri_core.running.headers import Facts, has_priors, header_of
from kri_core.running.planning import (
    PlannedRow,
    asks_probe_to_select,
    baselines,
    check_scorers,
    placement_rows,
    planned_rows,
    stacks_of,
)
from kri_core.running.processes import Crew, Todo, crew
from kri_core.running.serving import served, served_rows
from kri_core.stack import Stack

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int, int], object]  # (work, documents done, in all, at once)


@frozen
class RunOptions:
    """What is to be run, beside what a process is started with."""

    stacks: tuple[str, ...]
    budgets: tuple[int, ...]  # empty: the stacks' own
    num_seeds: int
    jobs: int
    out: Path
    today: str
    placement: bool = False  # also each stack over what it kept of the next document


@frozen
class Finished:
    """What a run left."""

    records: tuple[Path, ...]
    failures: tuple[Failure, ...]


def run(job: Job, options: RunOptions, model: str, report: Report) -> Finished:
    """Run or go on with it; what fails on one document is named, and everything else is done."""
    registry = Registry.discover()
    stacks = stacks_of(options.stacks, options.budgets, registry)
    scorers = dict.fromkeys(str(stack.scorer.ref) for stack in stacks if stack.scorer)
    job = evolve(job, scorers=tuple(scorers))
    with crew(job, options.jobs) as hands:
        said = hands.report()
        check_scorers(stacks, said.longest, registry)
        if options.placement:
            position_matched(0, said.documents)  # refused before any work
        if job.docs is not None and said.documents < job.docs:
            _say_fewer(job.task, said.documents, job.docs)
        prepared = _prepared(hands, said.documents, report, options.jobs)
        keep_documents(job.cache, prepared)
        if job.server is not None:
            said = served(job, job.server, said, prepared, stacks)
        rows = _planned(stacks, options.num_seeds, prepared, registry)
        if options.placement:
            rows += placement_rows(rows)
        if job.server is not None:
            rows = served_rows(rows)
        facts = Facts.of(job, said, model, prepared, registry)
        by_name = {str(stack.config): stack for stack in stacks}
        rows = [row for row in rows if has_priors(row, by_name.get(row.name), prepared)]
        headers = [header_of(row, by_name.get(row.name), facts) for row in rows]
        with ExitStack() as files:
            opened = (recording(options.out, header, options.today) for header in headers)
            recorders = [files.enter_context(one) for one in opened]
            work = list(_missing(rows, recorders, prepared))
            failures = _answered(hands, work, recorders, report, options.jobs)
        baked = [failure for one in prepared for failure in one.failures]
        return Finished(tuple(one.path for one in recorders), (*baked, *failures))


def _planned(
    stacks: list[Stack], num_seeds: int, prepared: Sequence[Prepared], registry: Registry
) -> list[PlannedRow]:
    """Every row; the baselines join the stacks."""
    largest = max((one.layout for one in prepared), key=lambda layout: layout.num_blocks)
    stacks += baselines(stacks, largest, registry)
    return planned_rows(
        stacks,
        largest,
        {str(stack.config): probe_sets_of(stack, prepared) for stack in stacks},
        num_seeds,
        evidence=all(one.evidence for one in prepared),
    )


def _prepared(hands: Crew, count: int, report: Report, jobs: int) -> list[Prepared]:
    prepared = []
    report("preparing", 0, count, jobs)
    for one in hands.prepare(range(count)):
        for failure in one.failures:
            _say(failure)
        prepared.append(one)
        report("preparing", len(prepared), count, jobs)
    ids = [name for one in prepared for name in one.items]
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise ConfigError(f"two items of the task are called {twice!r}; give each its own id")
    first = prepared[0]
    for one in prepared:
        if (one.probe_sets, one.ranked_by) != (first.probe_sets, first.ranked_by):
            raise ConfigError(
                f"documents {first.document!r} and {one.document!r} have other probe sets or are "
                "ranked by another score; a task has the same for all its documents"
            )
    return prepared


def probe_sets_of(stack: Stack, prepared: Sequence[Prepared]) -> tuple[str | None, ...]:
    """A row for each probe set, if anything differs between them; else one without."""
    sets = prepared[0].probe_sets
    if not sets:
        return (None,)
    if asks_probe_to_select(stack):
        return sets
    if stack.scorer is None:
        return (None,)
    scorer = str(stack.scorer.ref)
    same = all(
        len({one.priors.get((scorer, probe_set)) for probe_set in sets}) == 1 for one in prepared
    )
    return (None,) if same else sets


def _answered(
    hands: Crew,
    work: Sequence[tuple[int, Todo]],
    recorders: Sequence[Recorder],
    report: Report,
    jobs: int,
) -> list[Failure]:
    """Answer and record what is missing, documents in order; a failure leaves its gap.

    Whole documents are reported: rows take from no time to minutes, documents about as long as
    each other.
    """
    failures = []
    report("answering", 0, len(work), jobs)
    for done, found in enumerate(hands.answer(work), start=1):
        for place, results in found:
            if isinstance(results, Failure):
                _say(results)
                failures.append(results)
            else:
                _append(recorders[place], results)
        report("answering", done, len(work), jobs)
    return failures


def _missing(
    rows: Sequence[PlannedRow], recorders: Sequence[Recorder], prepared: Sequence[Prepared]
) -> Iterator[tuple[int, Todo]]:
    """For each document the rows, and of each the seeds, that lack an item."""
    for index, one in enumerate(prepared):
        todo = []
        for place, (row, recorder) in enumerate(zip(rows, recorders, strict=True)):
            seeds = tuple(
                seed
                for seed in row.seeds
                if any((name, seed) not in recorder.done for name in one.items)
            )
            if seeds:
                todo.append((place, evolve(row, seeds=seeds)))
        if todo:
            yield index, tuple(todo)


def _append(recorder: Recorder, results: Iterable[Result]) -> None:
    for result in results:
        if result.key not in recorder.done:
            recorder.append(result)


def _say_fewer(task: str, there: int, asked: int) -> None:
    logger.warning("task %s has %d documents, %d were asked", task, there, asked)


def _say(failure: Failure) -> None:
    logger.warning("%s on document %s: %s", failure.what, failure.document, failure.message)
