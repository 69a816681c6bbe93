"""From a task's name to the task: installed packages bring them in the group `kri_core.tasks`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import cast

import attrs

from kri_core.config import PluginRef
from kri_core.errors import PluginError
from kri_core.evaluation.tasks.contract import Task
from kri_core.hookspecs import TASK
from kri_core.loading import imported
from kri_core.params import check_params_class, make_params
from kri_core.registry import PluginRow, Registry


def load_task(name: str, params: Mapping[str, str], registry: Registry | None = None) -> Task:
    """The task of this name, or `package:name`, with its parameters given as text."""
    row = task_row(name, registry or Registry.discover())
    task = make_params(task_class(row), params, row.name, _by_set)
    if not isinstance(task, Task):
        raise PluginError(f"{row.label} made {type(task).__name__}; its class must make itself")
    return task


def _by_set(_name: str, key: str) -> str:
    return f"--set {key}={'FILE' if key == 'path' else 'VALUE'}"


def task_row(name: str, registry: Registry) -> PluginRow:
    """The installed plugin of a task's name."""
    package, _, bare = name.rpartition(":")
    return registry.find(TASK, PluginRef(bare, dist=package or None))


def task_class(row: PluginRow) -> type[Task]:
    """Import the class of a row and hold it to the contract."""
    found, _ = imported(row)
    if not (isinstance(found, type) and issubclass(found, Task) and attrs.has(found)):
        raise PluginError(
            f"{row.label}: its entry point {row.entry_point.value!r} is no task; point it at an "
            "attrs class derived from kri_core.evaluation.tasks.Task"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PluginError(f"{row.label} lacks {missing}; define it")
    check_params_class(found, TASK, row.label)
    return cast("type[Task]", found)
