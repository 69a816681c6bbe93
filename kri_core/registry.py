"""Which plugins are installed, read from package metadata alone: no plugin is imported."""

from __future__ import annotations

import difflib
import os
from importlib.metadata import EntryPoint

from attrs import evolve, field, frozen

from kri_core.catalogue import DISTRIBUTION_OF, canonical_name
from kri_core.config import CORE, PluginRef
from kri_core.errors import PluginError
from kri_core.grammar import caret
from kri_core.packages import Package, installed_packages
from kri_core.plugin_health import State, health, nearest_slot

HOW_TO_WRITE = {
    "scorer": "A1R2K13({})",
    "selector": "A0R0K16(~{})",
    "split": "{}[budget=16]",
    "repair": "A1R2K13+{}",
    "task": "kri-core eval run --task {}",
}


@frozen
class PluginRow:
    """One entry point, as `list-plugins` shows it."""

    name: str
    slot: str
    distribution: str
    version: str
    state: State
    reason: str  # why the state is not ok and what to do; empty if it is
    summary: str
    entry_point: EntryPoint = field(eq=False, repr=False)

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.slot} {self.name!r} of {self.distribution} {self.version}"


@frozen
class Registry:
    """The installed plugins that KRI_PLUGINS and KRI_DISABLE_PLUGINS let through."""

    rows: tuple[PluginRow, ...]
    hidden: tuple[PluginRow, ...] = ()  # filtered out
    unknown: tuple[str, ...] = ()  # names in a filter that no plugin has

    @classmethod
    def discover(cls) -> Registry:
        """Scan the environment once; a plugin that cannot be used becomes a row, not an error."""
        rows = [
            _row(package, point) for package in installed_packages() for point in package.points
        ]
        allowed, denied = _names("KRI_PLUGINS"), _names("KRI_DISABLE_PLUGINS")
        known = {row.name for row in rows}
        shown = [row for row in rows if _passes(row, allowed, denied)]
        return cls(
            rows=tuple(sorted(_mark_conflicts(shown), key=_order)),
            hidden=tuple(sorted((row for row in rows if row not in shown), key=_order)),
            unknown=tuple(sorted((allowed | denied) - known)),
        )

    def find(self, slot: str, ref: PluginRef, text: str | None = None) -> PluginRow:
        """The one usable row a stack's reference means; a PluginError says what to do if none."""
        rows = [row for row in self.rows if row.slot == slot and row.name == ref.name]
        if ref.dist is not None:
            rows = [row for row in rows if row.distribution in _spellings(ref.dist)]
        usable = [row for row in rows if row.state in ("ok", "conflict")]
        if ref.dist is None:
            usable = [row for row in usable if row.distribution == CORE] or usable
        if len(usable) == 1:
            return usable[0]
        where = caret(text, ref.at) if text is not None and ref.at is not None else ""
        if usable:
            choices = " or ".join(f"{row.distribution}:{row.name}" for row in usable)
            raise PluginError(f"{ref.name!r} is in several packages; write {choices}" + where)
        if rows:
            faults = "; ".join(f"{row.label} is {row.state}: {row.reason}" for row in rows)
            raise PluginError(faults + where)
        raise PluginError(self._missing(slot, ref) + where)

    def _missing(self, slot: str, ref: PluginRef) -> str:
        name = ref.name
        elsewhere = [row for row in self.rows if row.name == name and row.slot != slot]
        if elsewhere and ref.dist is None:
            other = elsewhere[0].slot
            return f"{name!r} is a {other}, not a {slot}; write {HOW_TO_WRITE[other].format(name)}"
        if any(row.name == name and row.slot == slot for row in self.hidden):
            return f"{name!r} is switched off by KRI_PLUGINS or KRI_DISABLE_PLUGINS; change those"
        if ref.dist is not None:
            return f"no {slot} {name!r} in a package {ref.dist!r}; see kri-core list-plugins"
        if name in DISTRIBUTION_OF:
            return f"{name!r} is not installed; pip install {DISTRIBUTION_OF[name]}"
        installed = difflib.get_close_matches(
            name, {r.name for r in self.rows if r.slot == slot}, 1
        )
        others = difflib.get_close_matches(name, DISTRIBUTION_OF.keys() - set(installed), 1)
        hints = [f"did you mean {installed[0]}?"] if installed else []
        hints += [
            f"{n} comes with: pip install {DISTRIBUTION_OF[n]}"
            for n in others
            if not any(row.name == n for row in self.rows)
        ]
        return f"no {slot} is called {name!r}; " + (" ".join(hints) or "see kri-core list-plugins")


def _order(row: PluginRow) -> tuple[str, str, str]:
    return row.slot, row.name, row.distribution


def _spellings(dist: str) -> set[str]:
    """`eigen:` is short for `kri-plugin-eigen:`."""
    return {dist, f"kri-plugin-{dist}"}


def _names(variable: str) -> set[str]:
    return {
        canonical_name(name) for name in os.environ.get(variable, "").split(",") if name.strip()
    }


def _passes(row: PluginRow, allowed: set[str], denied: set[str]) -> bool:
    """An allow-list never hides the core's own plugins: stacks are written with them."""
    if row.name in denied:
        return False
    return not allowed or row.name in allowed or row.distribution == CORE


def _row(package: Package, point: EntryPoint) -> PluginRow:
    state, reason = health(package, point)
    return PluginRow(
        name=canonical_name(point.name),
        slot=nearest_slot(point.group),
        distribution=package.name,
        version=package.version,
        state=state,
        reason=reason,
        summary=package.summary,
        entry_point=point,
    )


def _mark_conflicts(rows: list[PluginRow]) -> list[PluginRow]:
    """One name, several usable plugins: the core's own wins, strangers refuse until qualified."""
    namesakes: dict[tuple[str, str], list[PluginRow]] = {}
    for row in rows:
        if row.state == "ok":
            namesakes.setdefault((row.slot, row.name), []).append(row)
    return [
        _against(row, namesakes[row.slot, row.name]) if row.state == "ok" else row for row in rows
    ]


def _against(row: PluginRow, namesakes: list[PluginRow]) -> PluginRow:
    packages = [other.distribution for other in namesakes]
    if packages.count(row.distribution) > 1:
        reason = f"its package registers {row.name!r} twice; its author must rename one"
        return evolve(row, state="broken", reason=reason)
    rivals = [name for name in packages if name != row.distribution]
    if not rivals or row.distribution == CORE:
        return row
    write = f"write {row.distribution}:{row.name} to use this one"
    also = "the built-in wins" if CORE in rivals else f"also in {', '.join(rivals)}"
    return evolve(row, state="conflict", reason=f"{also}; {write}")
