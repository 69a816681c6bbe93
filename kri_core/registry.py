"""Which plugins are installed, read from package metadata alone: no plugin is imported."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from attrs import evolve, field, frozen

from kri_core.catalogue import DISTRIBUTION_OF, canonical_name
from kri_core.config import PluginRef
from kri_core.errors import PluginError
from kri_core.grammar import caret
from kri_core.hookspecs import GROUPS
from kri_core.plugin_health import CORE, State, folded, health

HOW_TO_WRITE = {
    "scorer": "A1R2K13({})",
    "selector": "A0R0K16(~{})",
    "split": "{}[budget=16]",
    "repair": "A1R2K13+{}",
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
        found = entry_points()  # one scan: each costs tens of ms in a large environment
        rows = [
            _row(slot, point)
            for slot, group in GROUPS.items()
            for point in found.select(group=group)
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
        else:
            rows = [row for row in rows if row.distribution == CORE] or rows
        where = caret(text, ref.at) if text is not None and ref.at is not None else ""
        if not rows:
            raise PluginError(self._missing(slot, ref) + where)
        if len(rows) > 1:
            choices = " or ".join(f"{row.distribution}:{row.name}" for row in rows)
            raise PluginError(f"{ref.name!r} is in two packages; write {choices}" + where)
        row = rows[0]
        if row.state in ("broken", "incompatible"):
            raise PluginError(f"{row.label} is {row.state}: {row.reason}" + where)
        return row

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


def _row(slot: str, point: EntryPoint) -> PluginRow:
    dist = point.dist
    assert dist is not None  # noqa: S101 - entry_points() always sets it
    state, reason = health(point, dist)
    return PluginRow(
        name=canonical_name(point.name),
        slot=slot,
        distribution=folded(dist.metadata["Name"] or "?"),
        version=dist.metadata["Version"] or "?",
        state=state,
        reason=reason,
        summary=dist.metadata["Summary"] or "",
        entry_point=point,
    )


def _mark_conflicts(rows: Iterable[PluginRow]) -> list[PluginRow]:
    """Two packages, one name: the core's own wins, strangers refuse until one is qualified."""
    rows = list(rows)
    marked = []
    for row in rows:
        rivals = [
            other.distribution
            for other in rows
            if (other.slot, other.name) == (row.slot, row.name)
            and other.distribution != row.distribution
        ]
        if rivals and row.distribution != CORE and row.state == "ok":
            write = f"write {row.distribution}:{row.name} to use this one"
            also = "the built-in wins" if CORE in rivals else f"also in {', '.join(rivals)}"
            row = evolve(row, state="conflict", reason=f"{also}; {write}")
        marked.append(row)
    return marked
