"""`kri-core ask`: one question to a document through a stack, on the hf substrate."""

from __future__ import annotations

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
from kri_core.errors import EngineError

if TYPE_CHECKING:
    from kri_core.routing import Router
    from kri_core.substrate.hf import Answer
    from kri_core.types import Manifest


@click.command()
@click.argument("question")
@cartridge_option
@prior_option
@stack_option
@model_options("The model the cartridge was built with; default: the one it records.")
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
    from kri_core.substrate.hf import HfProbe, answer, question_ids
    from kri_core.types import Query

    router = _router(stack_text)
    cartridge = read_cartridge(cartridge_path)
    prior = read_prior(prior_path) if prior_path else None
    model = load_model_of(cartridge, model_name, revision, dtype, device)
    token_ids = question_ids(model, question, cartridge.token_ids, chat_template)
    probe = HfProbe(model, cartridge, texts=(), batch=1)  # of the question alone
    manifest = router.route(cartridge, Query(token_ids), prior, probe)
    answered = answer(model, cartridge, manifest.kept, token_ids, max_new_tokens)
    text = model.tokenizer.decode(answered.token_ids, skip_special_tokens=True)
    if as_json:
        print_json(_record(manifest, answered, text))
    else:
        click.echo(text)
        _print_cost(manifest, answered)


def _router(stack_text: str) -> Router:
    """What the answer claims to have gone through, it must have gone through."""
    from kri_core.grammar import parse
    from kri_core.routing import Router

    router = Router.from_config(parse(stack_text))
    if router.stack.repairs:
        raise EngineError(
            f"the hf engine does not repair yet, and {router.stack.config} names "
            f"{router.stack.repairs[0].ref}; leave it out"
        )
    return router


def _record(manifest: Manifest, answered: Answer, text: str) -> dict[str, object]:
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
        "timings": _timings(answered),
    }


def _timings(answered: Answer) -> dict[str, float]:
    """Seconds."""
    return {
        "load": answered.load_seconds,
        "prefill": answered.prefill_seconds,
        "decode": answered.decode_seconds,
    }


def _print_cost(manifest: Manifest, answered: Answer) -> None:
    """What it took, on stderr: stdout is the answer."""
    kept = f"{len(manifest.kept)} of {manifest.total_blocks} blocks"
    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in _timings(answered).items())
    click.echo(f"{manifest.stack}: {kept}, {size(answered.kv_bytes)} of KV; {seconds}", err=True)
