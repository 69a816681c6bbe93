"""Whether a plugin can be used, told from its metadata and its files without importing it."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Literal

import kri_core
from kri_core.catalogue import canonical_name
from kri_core.config import CORE, PluginRef
from kri_core.errors import ConfigError
from kri_core.hookspecs import GROUPS
from kri_core.packages import Package

State = Literal["ok", "conflict", "broken", "incompatible"]
_ON_CORE = re.compile(r"kri[-_.]+core(?![-_.\w])", re.IGNORECASE)
_ENTRY_POINT = re.compile(r"(?P<module>\w+(\.\w+)*)\s*(:\s*\w+(\.\w+)*\s*)?(\[.*\]\s*)?")


@cache
def nearest_slot(group: str) -> str:
    """The slot of an entry-point group, or of the one its author most likely meant."""
    groups = {name: slot for slot, name in GROUPS.items()}
    return groups[difflib.get_close_matches(group, groups, 1, 0.0)[0]]


def health(package: Package, point: EntryPoint) -> tuple[State, str]:
    """State of one entry point and, if it is not ok, why and what to do."""
    needs = _unmet_core_requirement(package)
    if needs is not None:
        fix = f"pip install --upgrade {CORE} {package.name}"
        return "incompatible", f"it needs {needs}, this is {CORE} {kri_core.__version__}; {fix}"
    reason = _damage(package, point)
    return ("broken", reason) if reason else ("ok", "")


def _damage(package: Package, point: EntryPoint) -> str:
    remedy = f"reinstall it, or: pip uninstall {package.name}"
    if package.fault:
        return f"its {package.fault} cannot be read; {remedy}, or delete its metadata by hand"
    wanted = GROUPS[nearest_slot(point.group)]
    if point.group != wanted:
        return f"there is no entry-point group {point.group!r}; its author must write {wanted!r}"
    try:
        PluginRef(canonical_name(point.name))
    except ConfigError as error:
        return f"no stack can name it: {error}"
    value = _ENTRY_POINT.fullmatch(point.value)
    if value is None:
        return f"its entry point {point.value!r} is no module; its author must name one"
    if not _module_exists(value["module"]):
        return f"its module {value['module']!r} is gone; {remedy}"
    return ""


def _unmet_core_requirement(package: Package) -> str | None:
    """The requirement on kri-core that this version does not meet, if any."""
    lines = [line for line in package.requires if _ON_CORE.match(line)]
    if package.name == CORE or not lines:
        return None
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            return line
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(kri_core.__version__, prereleases=True):
            return f"{CORE}{requirement.specifier}"
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
    # A directory without code, such as the __pycache__ an uninstall leaves, has no origin.
    return spec is not None and spec.origin is not None
