"""`kri-core bake`: score a cartridge's blocks once and keep the answer as a prior."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kri_core.cli.options import FILE, cartridge_option, model_options
from kri_core.cli.probes import BATCH, probes_option, read_probes
from kri_core.cli.progress import progress
from kri_core.errors import ConfigError

if TYPE_CHECKING:
    from kri_core.config import PluginRef


@click.command()
@cartridge_option
@model_options(
    "The model the cartridge was built with; default: the one it records.", dtype="float32"
)
@click.option("--scorer", "scorers", multiple=True, required=True, help="Once for each prior.")
@probes_option
@click.option(
    "--out", type=FILE, required=True, help="A .pt or .safetensors file, or a folder for several."
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=BATCH,
    show_default=True,
    help="Blocks scored at once; bounds the memory.",
)
@click.option(
    "--results",
    type=FILE,
    default="results",
    show_default=True,
    help="Where a kill log is, if there is one; a prior that selects as a killed one did is said.",
)
def bake(
    cartridge_path: Path,
    model_name: str | None,
    revision: str | None,
    dtype: str,
    device: str,
    scorers: tuple[str, ...],
    probes: Path | None,
    out: Path,
    batch: int,
    results: Path,
) -> None:
    """Bake a prior for each scorer; a killed bake goes on where it stopped.

    In a folder the priors are named <cart_id>_<scorer>.pt. Leave-one-out scores drown in rounding
    below float32, hence --dtype float32.
    """
    from kri_core.artifacts import read_cartridge, write_prior
    from kri_core.bake import bake as bake_priors
    from kri_core.cli.loading import load_model_of
    from kri_core.grammar import parse_scorer
    from kri_core.registry import Registry
    from kri_core.running.killed import killed_in, prior_alike
    from kri_core.scoring import needs_probe
    from kri_core.stack import Member
    from kri_core.substrate.hf import DiskJournal, HfProbe, journal_scope, probe_texts

    registry = Registry.discover()
    members = [Member.load(registry, "scorer", parse_scorer(text), text) for text in scorers]
    texts = read_probes(probes)
    cartridge = read_cartridge(cartridge_path)
    killed = killed_in(results)
    paths = prior_paths(out, cartridge.cart_id, [member.ref for member in members])
    with progress() as report:
        probe = journal = None
        # Asked for by name, a model also gives the features that some selectors compare blocks by.
        if model_name is not None or any(needs_probe(member) for member in members):
            model = load_model_of(cartridge, model_name, revision, dtype, device)
            asked = probe_texts(model, texts)
            work = paths[0].parent / f".{cartridge.cart_id}.bake"
            journal = DiskJournal(work, journal_scope(model, cartridge, asked))
            probe = HfProbe(model, cartridge, asked, batch, journal, report)
        alike: list[str] = []
        baked = bake_priors(cartridge, members, probe)
        for path, (member, made) in zip(paths, baked, strict=True):
            write_prior(made, path)
            alike += prior_alike(member, cartridge, made, probe, killed)
    if journal is not None:
        journal.discard()
    for path in paths:
        click.echo(path)
    for line in alike:
        click.echo(f"warning: {line}", err=True)


def prior_paths(out: Path, cart_id: str, scorers: list[PluginRef]) -> list[Path]:
    """One path per scorer: the file itself, or readable names in a folder."""
    from kri_core.artifacts import check_target

    if out.suffix and not out.is_dir():
        check_target(out)
        if len(scorers) > 1:
            raise ConfigError(f"--out {out} is one file for {len(scorers)} scorers; give a folder")
        return [out]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be made a folder ({error.strerror}); give a .pt file or another"
        ) from error
    names = [re.sub(r"[^\w.-]+", "-", str(ref)).strip("-") for ref in scorers]
    if len(set(names)) < len(names):
        raise ConfigError(f"a scorer is given twice: {', '.join(names)}; give each once")
    return [out / f"{cart_id}_{name}.pt" for name in names]
