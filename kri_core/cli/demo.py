"""`kri-core demo`: the main job end to end on the embedded model and a shipped document."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

from kri_core.cli.cartridge import BLOCK_SIZE
from kri_core.cli.options import FILE
from kri_core.cli.output import print_table, size
from kri_core.cli.probes import BATCH
from kri_core.cli.progress import progress
from kri_core.demo import PROBES, document, prompt, questions

if TYPE_CHECKING:
    from kri_core.prior import Prior
    from kri_core.substrate.hf import Answer, HfModel
    from kri_core.types import Cartridge, Manifest

SCORERS = ("kri-d-kv-sum", "kri-d")
DENSE = "whole"
BUDGET = 16
BESIDE = (f"recency[budget={BUDGET}]", "A1R2K13(random)")  # position alone, and chance, same budget
NEW_TOKENS = 16
HEADERS = ("stack", "kept", "fraction", "KV", "seconds", "KL to dense", "same", "answer")


@frozen(eq=False)
class Row:
    """One stack's answer."""

    manifest: Manifest
    answer: Answer
    text: str  # the first line
    seconds: float


@click.command()
@click.option("--model", "model_name", default="smollm2-135m", show_default=True)
@click.option("--out", type=FILE, help="Keep cartridge and priors here.")
def demo(model_name: str, out: Path | None) -> None:
    """Build a cartridge, bake two priors, ask one question five ways, and print one table."""
    with tempfile.TemporaryDirectory(prefix="kri-demo-") as scratch:
        folder = out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        _demo(model_name, folder)


def _demo(model_name: str, folder: Path) -> None:
    from kri_core.artifacts import read_cartridge, read_prior
    from kri_core.cli.loading import load
    from kri_core.substrate.hf import question_ids

    asked = questions()[0]
    model = load(model_name, None, dtype="float32", device="cpu")
    cartridge_path = folder / "service-manual.safetensors"
    _build(model, document(), cartridge_path)
    cartridge = read_cartridge(cartridge_path)
    priors = {name: read_prior(path) for name, path in _bake(model, cartridge, folder).items()}
    question = question_ids(model, asked.prompt)
    stacks: list[tuple[str, Prior | None]] = [(DENSE, None)]
    stacks += [(f"A1R2K13({name})", prior) for name, prior in priors.items()]
    stacks += [(stack, None) for stack in BESIDE]
    rows = [_ask(model, cartridge, stack, prior, question) for stack, prior in stacks]
    click.echo(f"\nQ: {asked.question}  (the document says: {asked.answer})\n")
    print_table(HEADERS, [_cells(row, rows[0]) for row in rows])
    click.echo(
        "\nKL is in nats, the mean over the question's tokens. One question shows the mechanism, "
        "not the quality."
    )


def _build(model: HfModel, text: str, path: Path) -> None:
    from kri_core.artifacts import write_cartridge
    from kri_core.substrate.hf import build_cartridge

    start = time.perf_counter()
    with progress() as report:
        made = build_cartridge(
            model,
            text,
            cart_id=path.stem,
            block_size=BLOCK_SIZE,
            progress=partial(report, "prefill"),
        )
    write_cartridge(made, path)
    tokens, blocks = made.layout.num_tokens, made.layout.num_blocks
    seconds = time.perf_counter() - start
    click.echo(
        f"built   {path.name}: {tokens} tokens, {blocks} blocks, {size(made.num_bytes)} of KV "
        f"in {seconds:.1f} s"
    )


def _bake(model: HfModel, cartridge: Cartridge, folder: Path) -> dict[str, Path]:
    from kri_core.artifacts import write_prior
    from kri_core.bake import bake
    from kri_core.config import PluginRef
    from kri_core.registry import Registry
    from kri_core.stack import Member
    from kri_core.substrate.hf import HfProbe, probe_texts

    registry = Registry.discover()
    paths = {name: folder / f"{cartridge.cart_id}_{name}.pt" for name in SCORERS}
    with progress() as report:
        texts = probe_texts(model, [prompt(question) for question in PROBES])
        probe = HfProbe(model, cartridge, texts, BATCH, progress=report)
        scorers = [Member.load(registry, "scorer", PluginRef(name)) for name in SCORERS]
        start = time.perf_counter()
        for scorer, made in bake(cartridge, scorers, probe):
            path = paths[scorer.ref.name]
            write_prior(made, path)
            click.echo(f"baked   {path.name} in {time.perf_counter() - start:.1f} s")
            start = time.perf_counter()
    return paths


def _ask(
    model: HfModel, cartridge: Cartridge, stack: str, prior: Prior | None, question: tuple[int, ...]
) -> Row:
    from kri_core.grammar import parse
    from kri_core.routing import Router
    from kri_core.substrate.hf import answer
    from kri_core.types import Query

    router = Router.from_config(parse(stack))
    start = time.perf_counter()
    manifest = router.route(cartridge, Query(question), prior)
    answered = answer(model, cartridge, manifest.kept, question, NEW_TOKENS)
    seconds = time.perf_counter() - start
    text = model.tokenizer.decode(answered.token_ids, skip_special_tokens=True)
    return Row(manifest, answered, text.strip().partition("\n")[0], seconds)


def _cells(row: Row, dense: Row) -> tuple[str, ...]:
    from kri_core.substrate.hf import divergence

    manifest = row.manifest
    return (
        manifest.stack,
        f"{len(manifest.kept)} of {manifest.total_blocks}",
        f"{manifest.kept_fraction:.1%}",
        size(row.answer.kv_bytes),
        f"{row.seconds:.2f}",
        f"{divergence(dense.answer, row.answer):.3f}",
        "yes" if row.text == dense.text else "no",
        row.text,
    )
