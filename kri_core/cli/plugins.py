"""`kri-core list-plugins`: what is installed, from metadata alone."""

from __future__ import annotations

import click
from attrs import fields

from kri_core.cli.output import print_json, print_table
from kri_core.hookspecs import SLOTS
from kri_core.registry import PluginRow, Registry

COLUMNS = ("name", "slot", "distribution", "version", "state", "summary")


@click.command("list-plugins")
@click.option("--slot", type=click.Choice(list(SLOTS)), help="Only this slot.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
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
        shown = [(*_cells(row)[:-1], row.reason or row.summary) for row in rows]
        print_table(COLUMNS, shown)


def _cells(row: PluginRow) -> list[str]:
    return [getattr(row, column) for column in COLUMNS]


def _record(row: PluginRow) -> dict[str, str]:
    names = [item.name for item in fields(PluginRow) if item.name != "entry_point"]
    return {name: getattr(row, name) for name in names}
