"""`kri-core list-plugins`: what is installed, from metadata alone."""

from __future__ import annotations

import click
from attrs import fields

from kri_core.cli.options import json_flag
from kri_core.cli.output import print_json, print_table
from kri_core.hookspecs import GROUPS
from kri_core.registry import PluginRow, Registry

COLUMNS = ("name", "slot", "distribution", "version", "state", "summary")


@click.command("list-plugins")
@click.option("--slot", type=click.Choice(list(GROUPS)), help="Only this slot, or tasks.")
@json_flag
def list_plugins(slot: str | None, as_json: bool) -> None:
    """Show every installed plugin; none is imported."""
    registry = Registry.discover()
    rows = [row for row in registry.rows if slot in (None, row.slot)]
    if registry.hidden:
        hidden = ", ".join(sorted({row.name for row in registry.hidden}))
        click.echo(f"hidden by KRI_PLUGINS or KRI_DISABLE_PLUGINS: {hidden}", err=True)
    if registry.unknown:
        unknown = ", ".join(registry.unknown)
        click.echo(
            f"KRI_PLUGINS or KRI_DISABLE_PLUGINS names no installed plugin: {unknown}", err=True
        )
    if as_json:
        print_json({"plugins": [_record(row) for row in rows]})
    else:
        print_table(COLUMNS, [_cells(row) for row in rows])


def _cells(row: PluginRow) -> tuple[str, ...]:
    told = row.reason or row.summary
    return row.name, row.slot, row.distribution, row.version, row.state, told


def _record(row: PluginRow) -> dict[str, str]:
    names = [item.name for item in fields(PluginRow) if item.name != "entry_point"]
    return {name: getattr(row, name) for name in names}
