"""Whether a plugin can be used, told from its metadata and its files without importing it."""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.metadata import Distribution, EntryPoint
from importlib.util import find_spec
from typing import Literal

import kri_core

State = Literal["ok", "conflict", "broken", "incompatible"]
CORE = "kri-core"


def folded(name: str) -> str:
    """A distribution's name as pip compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


def health(point: EntryPoint, dist: Distribution) -> tuple[State, str]:
    """State of one entry point and, if it is not ok, why and what to do."""
    needs = _unmet_core_requirement(dist)
    name = dist.metadata["Name"]
    if needs is not None:
        fix = f"pip install --upgrade {name}"
        return "incompatible", f"it needs {needs}, this is {CORE} {kri_core.__version__}; {fix}"
    module = point.value.partition(":")[0].strip()
    if not _module_exists(module):
        fix = f"reinstall it, or: pip uninstall {name}"
        return "broken", f"its module {module!r} is gone; {fix}"
    return "ok", ""


def _unmet_core_requirement(dist: Distribution) -> str | None:
    if folded(dist.metadata["Name"] or "") == CORE:
        return None
    from packaging.requirements import InvalidRequirement, Requirement

    for line in dist.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # pip could not have installed it by that line either
        wanted = requirement.specifier
        if folded(requirement.name) == CORE and not wanted.contains(
            kri_core.__version__, prereleases=True
        ):
            return f"{CORE}{wanted}"
    return None


def _module_exists(dotted: str) -> bool:
    """Look a module up without importing its parents, as find_spec would."""
    top, *rest = dotted.split(".")
    try:
        spec = find_spec(top)
        for depth in range(len(rest)):
            if spec is None or spec.submodule_search_locations is None:
                return False
            inner = ".".join((top, *rest[: depth + 1]))
            spec = PathFinder.find_spec(inner, list(spec.submodule_search_locations))
    except (ImportError, ValueError):
        return False
    return spec is not None
