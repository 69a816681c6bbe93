"""What `doctor` says of plugins, each of which is imported, in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from kri_core.cli.child import Child
from kri_core.cli.finding import Finding
from kri_core.registry import PluginRow, Registry

TIMEOUT = 60  # seconds for all of them; a hook module takes milliseconds


def plugin_findings() -> Iterator[Finding]:
    """Every installed plugin, and the names that KRI_PLUGINS and the like know and nobody has."""
    registry = Registry.discover()
    yield from _tried(registry.rows)
    for name in registry.unknown:
        yield Finding(
            f"plugin {name}",
            "missing",
            "named in KRI_PLUGINS or KRI_DISABLE_PLUGINS, but not installed",
            "install it, or take it out of the variable",
        )


def _tried(rows: Sequence[PluginRow]) -> Sequence[Finding]:
    """One process imports all; where one of them ends it, the next goes on behind that one."""
    found: list[Finding] = []
    while len(found) < len(rows):
        child = Child(
            [sys.executable, "-m", "kri_core.cli.doctor_child", "plugins", f"{len(found)}"]
        )
        done = child.end(TIMEOUT)
        found += [Finding(**json.loads(line)) for line in done.out.splitlines()]
        if len(found) < len(rows):
            row = rows[len(found)]
            found.append(
                Finding(
                    f"{row.slot} {row.name}",
                    "broken",
                    f"{row.label} cannot be imported: the process {done.fault or 'ended'}",
                    f"pip uninstall {row.distribution}, or set KRI_DISABLE_PLUGINS={row.name}",
                )
            )
    return found
