"""Documents in parallel processes: each loads the model once; answers come in order."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from kri_core.errors import EngineError, KriError
from kri_core.evaluation.records import Result
from kri_core.running.crossing import Failure, Job, Prepared, Reported
from kri_core.running.planning import PlannedRow
from kri_core.running.worker import Worker

T = TypeVar("T")
Todo = tuple[tuple[int, PlannedRow], ...]  # rows by their place in the plan
Answered = tuple[int, tuple[Result, ...] | Failure]
_worker: list[Worker | KriError] = []  # this process's, or why it has none


class Crew(Protocol):
    """What runs documents."""

    def report(self) -> Reported:
        """What a header says of the processes."""

    def prepare(self, indices: Iterable[int]) -> Iterator[Prepared]:
        """Documents built and baked, in this order."""

    def answer(self, work: Iterable[tuple[int, Todo]]) -> Iterator[Iterable[Answered]]:
        """For each document its rows' results, in this order."""


class Alone:
    """In this process."""

    def __init__(self, job: Job) -> None:
        self.worker = Worker.start(job)

    def report(self) -> Reported:
        """As the protocol says."""
        return self.worker.report()

    def prepare(self, indices: Iterable[int]) -> Iterator[Prepared]:
        """As the protocol says."""
        return map(self.worker.prepare, indices)

    def answer(self, work: Iterable[tuple[int, Todo]]) -> Iterator[Iterable[Answered]]:
        """As the protocol says; row by row, so that a kill loses one row of one document."""
        return (self.worker.answer(index, todo) for index, todo in work)


class Pool:
    """In processes of their own."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self.executor = executor

    def report(self) -> Reported:
        """As the protocol says."""
        return self.executor.submit(_report).result()

    def prepare(self, indices: Iterable[int]) -> Iterator[Prepared]:
        """As the protocol says."""
        return self._each(_prepare, indices)

    def answer(self, work: Iterable[tuple[int, Todo]]) -> Iterator[Iterable[Answered]]:
        """As the protocol says."""
        return self._each(_answer, work)

    def _each(self, function: Callable[..., T], values: Iterable[object]) -> Iterator[T]:
        return self.executor.map(function, values)


@contextmanager
def crew(job: Job, jobs: int) -> Iterator[Crew]:
    """One process or several; numbers are the same."""
    if jobs == 1:
        yield Alone(job)
        return
    spawn = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, spawn, initializer=_start, initargs=(job,))
    try:
        yield Pool(executor)
    except BrokenExecutor as error:
        raise EngineError(
            f"a process of the run ended by itself ({error}); give fewer --jobs if it "
            "lacked memory, and run the same command again"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _start(job: Job) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _worker.append(Worker.start(job))
    except KriError as error:  # raised here it would only break the pool
        _worker.append(error)


def _mine() -> Worker:
    worker = _worker[0]
    if isinstance(worker, KriError):
        raise worker
    return worker


def _end_with_parent() -> None:
    """A killed parent ends no child by itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _report() -> Reported:
    return _mine().report()


def _prepare(index: int) -> Prepared:
    return _mine().prepare(index)


def _answer(work: tuple[int, Todo]) -> list[Answered]:
    return list(_mine().answer(*work))
