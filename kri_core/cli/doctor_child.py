"""`python -m kri_core.cli.doctor_child`: what doctor tries in a process of its own.

One JSON object a line on stdout, each as soon as it is known; whatever the tried code prints goes
to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from attrs import asdict

from kri_core.cli.finding import Finding
from kri_core.errors import PluginError
from kri_core.evaluation.tasks import task_class
from kri_core.hookspecs import TASK
from kri_core.loading import load
from kri_core.registry import PluginRow, Registry


def main() -> None:
    """`vllm`, or `plugins` from the row of a number on."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as told:
        os.dup2(2, 1)
        for one in _vllm() if sys.argv[1] == "vllm" else _plugins(int(sys.argv[2])):
            print(json.dumps(one), file=told, flush=True)


def _vllm() -> Iterator[dict[str, object]]:
    from kri_core.substrate.vllm.health import look

    return map(asdict, look())


def _plugins(first: int) -> Iterator[dict[str, object]]:
    return (asdict(_plugin(row)) for row in Registry.discover().rows[first:])


def _plugin(row: PluginRow) -> Finding:
    subject = f"{row.slot} {row.name}"
    if row.state != "ok":
        return Finding(subject, "broken", f"{row.distribution}: {row.state}", row.reason)
    try:
        task_class(row) if row.slot == TASK else load(row)
    except PluginError as error:
        return Finding(subject, "broken", str(error))
    return Finding(subject, "ok", f"{row.distribution} {row.version}")


if __name__ == "__main__":
    main()
