"""`kri-core prior`: inspect, verify, convert."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict

from kri_core.cli.options import FILE, json_flag
from kri_core.cli.output import print_fields, print_json

if TYPE_CHECKING:
    from kri_core.prior import Prior

TOP = 8  # blocks shown by inspect


@click.group()
def prior() -> None:
    """What a scorer found out about a cartridge, in a file."""


@prior.command()
@click.argument("path", type=FILE)
@json_flag
def inspect(path: Path, as_json: bool) -> None:
    """Show what a prior holds and where it comes from."""
    from kri_core.artifacts import read_prior

    record = _record(path, read_prior(path))
    if as_json:
        print_json(record)
        return
    meta = record.pop("meta")
    named = (
        {f"meta.{name}": value for name, value in meta.items()} if isinstance(meta, dict) else {}
    )
    print_fields(record | named)


@prior.command()
@click.argument("path", type=FILE)
@click.option(
    "--cartridge", "cartridge_path", type=FILE, help="Also check that they belong together."
)
@json_flag
def verify(path: Path, cartridge_path: Path | None, as_json: bool) -> None:
    """Check a prior, and that it was baked for a cartridge."""
    from kri_core.artifacts import read_cartridge, read_prior

    held = read_prior(path)
    if cartridge_path is not None:
        held.check_belongs(read_cartridge(cartridge_path))
    if as_json:
        print_json(_record(path, held) | {"verified": True})
    else:
        belongs = f", belongs to {cartridge_path}" if cartridge_path else ""
        click.echo(f"{path}: ok{belongs}")


@prior.command()
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
def convert(source: Path, target: Path) -> None:
    """Rewrite SOURCE as TARGET (.safetensors or .pt)."""
    from kri_core.artifacts import convert_prior

    convert_prior(source, target)
    click.echo(target)


def _record(path: Path, held: Prior) -> dict[str, object]:
    scores = held.scores
    pooled = scores.pooled().tolist() if scores else []
    ranked = sorted(range(len(pooled)), key=lambda block: (-pooled[block], block))
    return {
        "path": str(path),
        "scores": list(scores.values.shape) if scores else None,
        "budgets": sorted(held.blocks_per_budget) or None,
        "blocks": list(held.blocks) if held.blocks is not None else None,
        "summary": {name: list(tensor.shape) for name, tensor in held.summary.items()} or None,
        "best_blocks": ranked[:TOP] or None,
        "meta": asdict(held.meta) if held.meta else None,
    }
