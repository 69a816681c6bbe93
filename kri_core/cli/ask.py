"""`kri-core ask`: one question to a document through a stack, on the hf substrate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kri_core.cli.options import (
    cartridge_option,
    json_flag,
    model_options,
    prior_option,
    stack_option,
)
from kri_core.cli.output import print_json, size
from kri_core.cli.probes import BATCH, probes_option, read_probes
from kri_core.cli.progress import progress

if TYPE_CHECKING:
    from kri_core.substrate.hf import Answer, Repair
    from kri_core.types import Manifest


@click.command()
@click.argument("question")
@cartridge_option
@prior_option
@stack_option
@model_options("The model the cartridge was built with; default: the one it records.")
@probes_option
@click.option("--max-new-tokens", type=click.IntRange(min=0), default=64, show_default=True)
@click.option("--chat-template", is_flag=True, help="The question is the next user turn.")
@json_flag
def ask(
    question: str,
    cartridge_path: Path,
    prior_path: Path | None,
    stack_text: str,
    model_name: str | None,
    revision: str | None,
    dtype: str,
    device: str,
    probes: Path | None,
    max_new_tokens: int,
    chat_template: bool,
    as_json: bool,
) -> None:
    """Answer QUESTION greedily from the blocks a stack keeps.

    Its tokens follow the cartridge's as they are: end a document with a newline, or start the
    question with one.
    """
    from kri_core.artifacts import read_cartridge, read_prior
    from kri_core.cli.loading import load_model_of
    from kri_core.grammar import parse
    from kri_core.repairing import check_references, repair_params
    from kri_core.routing import Router
    from kri_core.substrate.hf import HfProbe, answer, probe_texts, question_ids, run_repairs
    from kri_core.types import Query

    router = Router.from_config(parse(stack_text))
    texts = read_probes(probes)
    cartridge = read_cartridge(cartridge_path)
    check_references(cartridge, [repair_params(it.params) for it in router.stack.repairs])
    prior = read_prior(prior_path) if prior_path else None
    model = load_model_of(cartridge, model_name, revision, dtype, device)
    token_ids = question_ids(model, question, cartridge.token_ids, chat_template)
    start = time.perf_counter()
    with progress() as report:
        probe = HfProbe(model, cartridge, probe_texts(model, texts), BATCH, progress=report)
        manifest = router.route(cartridge, Query(token_ids), prior, probe)
    routed = time.perf_counter() - start
    ((prefix, repairs),) = run_repairs(model, cartridge, router, [(manifest, token_ids)])
    answered = answer(model, cartridge, manifest.kept, token_ids, max_new_tokens, repaired=prefix)
    text = model.tokenizer.decode(answered.token_ids, skip_special_tokens=True)
    if as_json:
        print_json(_record(manifest, answered, text, routed) | {"repair": _repair_record(repairs)})
    else:
        click.echo(text)
        _print_cost(manifest, answered, routed, repairs)


def _record(manifest: Manifest, answered: Answer, text: str, routed: float) -> dict[str, object]:
    return {
        "stack": manifest.stack,
        "cart_id": manifest.cart_id,
        "selected_blocks": list(manifest.kept),
        "total_blocks": manifest.total_blocks,
        "kept_fraction": manifest.kept_fraction,
        "kv_bytes": answered.kv_bytes,
        "token_ids": list(answered.token_ids),
        "logprobs": list(answered.logprobs),
        "text": text,
        "timings": _timings(answered, routed),
    }


def _timings(answered: Answer, routed: float) -> dict[str, float]:
    """Seconds."""
    return {
        "route": routed,
        "load": answered.load_seconds,
        "prefill": answered.prefill_seconds,
        "decode": answered.decode_seconds,
    }


def _repair_record(repairs: Sequence[Repair]) -> object:
    """None without a repair, one object for one, a list in the stack's order for several."""
    records = [
        {
            "name": repair.name,
            "reference": repair.params.reference,
            "refreshed": len(repair.report.refreshed),
            "kept_tokens": repair.report.num_kept_tokens,
            "deviation_mean": repair.report.deviation_mean,
            "deviation_max": repair.report.deviation_max,
            "deviation_sum": repair.report.deviation_sum,
            "share_captured": repair.report.share_captured,
            "seconds": repair.seconds,
        }
        for repair in repairs
    ]
    return records if len(records) > 1 else next(iter(records), None)


def _print_cost(
    manifest: Manifest, answered: Answer, routed: float, repairs: Sequence[Repair]
) -> None:
    """What it took, on stderr: stdout is the answer."""
    kept = f"{len(manifest.kept)} of {manifest.total_blocks} blocks"
    timings = _timings(answered, routed)
    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in timings.items())
    click.echo(f"{manifest.stack}: {kept}, {size(answered.kv_bytes)} of KV; {seconds}", err=True)
    for repair in repairs:
        report = repair.report
        click.echo(
            f"{repair.name}: {len(report.refreshed)} of {report.num_kept_tokens} tokens refreshed, "
            f"{report.share_captured:.0%} of the deviation; {repair.seconds:.2f} s",
            err=True,
        )
