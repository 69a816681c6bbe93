"""`kri-core bake-overlay`: repair one selection of a cartridge once, for a server to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kri_core.cli.options import FILE, cartridge_option, model_options, prior_option, stack_option
from kri_core.cli.output import size
from kri_core.cli.probes import BATCH, probes_option, read_probes
from kri_core.cli.progress import progress

if TYPE_CHECKING:
    from kri_core.artifacts import Overlay
    from kri_core.substrate.hf.repair import Repair


@click.command("bake-overlay")
@cartridge_option
@prior_option
@stack_option
@model_options("The model the cartridge was built with; default: the one it records.")
@probes_option
@click.option("--out", type=FILE, required=True, help="A .safetensors or .pt file.")
def bake_overlay(
    cartridge_path: Path,
    prior_path: Path | None,
    stack_text: str,
    model_name: str | None,
    revision: str | None,
    dtype: str,
    device: str,
    probes: Path | None,
    out: Path,
) -> None:
    """Keep the KV of a stack's selection as its repairs leave it.

    A server given the file serves the same stack and selection from it, without a repair. The
    selection must not depend on the question.
    """
    from kri_core.artifacts import check_target, read_cartridge, read_prior, write_overlay
    from kri_core.cli.loading import load_model_of
    from kri_core.grammar import parse
    from kri_core.repairing import check_references, repair_params
    from kri_core.routing import Router
    from kri_core.substrate.hf import HfProbe, probe_texts
    from kri_core.substrate.hf.overlay import bake_overlay as baked
    from kri_core.substrate.hf.overlay import check_overlay

    router = Router.from_config(parse(stack_text))
    check_overlay(router)
    check_target(out)
    texts = read_probes(probes)
    cartridge = read_cartridge(cartridge_path)
    check_references(cartridge, [repair_params(it.params) for it in router.stack.repairs])
    prior = read_prior(prior_path) if prior_path else None
    model = load_model_of(cartridge, model_name, revision, dtype, device)
    with progress() as report:
        probe = HfProbe(model, cartridge, probe_texts(model, texts), BATCH, progress=report)
        manifest = router.route(cartridge, None, prior, probe)
    overlay, repairs = baked(model, cartridge, router, manifest)
    write_overlay(overlay, out)
    _tell(overlay, repairs)
    click.echo(out)


def _tell(overlay: Overlay, repairs: Sequence[Repair]) -> None:
    """What was refreshed, and what is kept."""
    for repair in repairs:
        done = repair.report
        click.echo(
            f"{repair.name}: {len(done.refreshed)} of {done.num_kept_tokens} tokens refreshed, "
            f"{done.share_captured:.0%} of the deviation; {repair.seconds:.2f} s",
            err=True,
        )
    held = overlay.blocks.nbytes + overlay.tail.nbytes
    kept = f"{len(overlay.header.kept)} of {overlay.layout.num_blocks} blocks"
    click.echo(f"{overlay.header.stack}: {kept}, {size(held)} of KV", err=True)
