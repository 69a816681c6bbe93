"""`kri-core route`: which blocks a request would see, and why; no answer is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict

from kri_core.cli.options import (
    FILE,
    cartridge_option,
    json_flag,
    model_options,
    prior_option,
    stack_option,
)
from kri_core.cli.output import print_fields, print_json, print_table
from kri_core.cli.probes import BATCH, probes_option, read_probes
from kri_core.cli.progress import Progress, progress
from kri_core.cli.replay import print_replay, replay

if TYPE_CHECKING:
    from kri_core.explain import BlockReason
    from kri_core.probe import Probe
    from kri_core.substrate.hf import HfModel
    from kri_core.types import Cartridge, Manifest, Query


@click.command()
@cartridge_option
@prior_option
@stack_option
@click.option("--query", help="The question, for a scorer that asks for one.")
@model_options("For a scorer that runs the question, or a selector that runs probe texts.")
@probes_option
@click.option("--explain", "explained", is_flag=True, help="Every kept block: why, and its text.")
@click.option("--html", type=FILE, help="Also write a page to look at.")
@click.option("--replay", "trace", type=FILE, help="Route the questions of a server's trace.")
@json_flag
def route(
    cartridge_path: Path,
    prior_path: Path | None,
    stack_text: str,
    query: str | None,
    model_name: str | None,
    revision: str | None,
    dtype: str,
    device: str,
    probes: Path | None,
    explained: bool,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Show which blocks a stack chooses."""
    from kri_core.artifacts import read_cartridge, read_prior
    from kri_core.cli.loading import load_model_of
    from kri_core.explain import explain
    from kri_core.grammar import parse
    from kri_core.routing import Router

    if trace and (query is not None or explained or html):
        raise click.UsageError(
            "--replay has its own questions; leave out --query, --explain, --html"
        )
    router = Router.from_config(parse(stack_text))
    texts = read_probes(probes)
    cartridge = read_cartridge(cartridge_path)
    prior = read_prior(prior_path) if prior_path else None
    asked = None if query is None else _question(cartridge, query)
    model = load_model_of(cartridge, model_name, revision, dtype, device) if model_name else None
    with progress() as report:
        probe = _probe(cartridge, model, texts, report) if model else None
        if trace:
            found = replay(trace, router, cartridge, prior, probe)
            print_replay(found, None if as_json else _decoder(cartridge), as_json)
            return
        manifest = router.route(cartridge, asked, prior, probe)
    decode = _decoder(cartridge) if explained or html else None
    reasons = explain(manifest, cartridge, decode)
    if html:
        _write_page(html, manifest, reasons)
    if as_json:
        print_json(_record(manifest, reasons if explained else None))
    else:
        _print(manifest, reasons if explained else None)


def _question(cartridge: Cartridge, text: str) -> Query:
    from kri_core.cli.tokenizer import tokenizer_of
    from kri_core.substrate.hf import encode_with
    from kri_core.types import Query

    return Query(encode_with(tokenizer_of(cartridge), text))


def _probe(cartridge: Cartridge, model: HfModel, texts: Sequence[str], report: Progress) -> Probe:
    from kri_core.substrate.hf import HfProbe, probe_texts

    return HfProbe(model, cartridge, probe_texts(model, texts), BATCH, progress=report)


def _decoder(cartridge: Cartridge) -> Callable[[Sequence[int]], str] | None:
    """Without the tokenizer the blocks are shown by number; that is said, not hidden."""
    from kri_core.cli.tokenizer import tokenizer_of
    from kri_core.errors import EngineError

    try:
        return tokenizer_of(cartridge).decode  # type: ignore[no-any-return]
    except EngineError as error:
        click.echo(f"no text is shown: {error}", err=True)
        return None


def _write_page(path: Path, manifest: Manifest, reasons: Sequence[BlockReason]) -> None:
    from kri_core.artifacts.atomic import replacing
    from kri_core.artifacts.opening import naming
    from kri_core.cli.route_page import route_page

    with naming(path), replacing(path) as file:
        file.write(route_page(manifest, reasons).encode())


def _record(manifest: Manifest, reasons: Sequence[BlockReason] | None) -> dict[str, object]:
    record: dict[str, object] = {
        "stack": manifest.stack,
        "cart_id": manifest.cart_id,
        "prefix_hash": manifest.prefix_hash,
        "selected_blocks": list(manifest.kept),
        "total_blocks": manifest.total_blocks,
        "kept_fraction": manifest.kept_fraction,
        "anchor": list(manifest.split.anchor),
        "recent": list(manifest.split.recent),
    }
    if reasons is not None:
        record["blocks"] = [asdict(reason) | {"why": reason.why} for reason in reasons]
    return record


def _print(manifest: Manifest, reasons: Sequence[BlockReason] | None) -> None:
    print_fields(
        {
            "stack": manifest.stack,
            "cartridge": manifest.cart_id,
            "kept": f"{len(manifest.kept)} of {manifest.total_blocks} blocks "
            f"({manifest.kept_fraction:.1%})",
            "blocks": " ".join(map(str, manifest.kept)) or "none",
        }
    )
    if reasons is not None:
        rows = [(str(r.block), r.why, repr(r.text or "")) for r in reasons if r.kept]
        click.echo()
        print_table(("block", "why", "text"), rows)
