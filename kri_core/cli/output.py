"""How commands print: JSON with a schema version, plain tables, byte counts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence

import click

SCHEMA_VERSION = 1
NARROWEST = 20  # columns the last column keeps in a narrow terminal


def print_json(data: Mapping[str, object]) -> None:
    """One JSON object on stdout."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=2))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns by width; only on a terminal is the last one cut to fit."""
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(room, NARROWEST))
    for row in (headers, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        click.echo("  ".join((*cells, _cut(row[-1], widths[-1]))).rstrip())


def print_fields(fields: Mapping[str, object]) -> None:
    """One `name  value` line each."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {'-' if value is None else value}")


def size(num_bytes: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
