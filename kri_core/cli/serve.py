"""`kri-core config` and `kri-core serve`: vLLM with routing, as DESIGN 8 says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

import click

from kri_core.cli.serving import routing_options, transfer_config


@click.command()
@routing_options
def config(extra: Mapping[str, object]) -> None:
    """Print the JSON for `vllm serve MODEL --kv-transfer-config "$(kri-core config …)"`."""
    click.echo(json.dumps(transfer_config(extra)))


@click.command()
@click.argument("model")
@click.argument("vllm_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM FLAGS]")
@routing_options
@click.option("--self-check", is_flag=True, help="Serve only if routed answers are exact here.")
@click.option("--cpu-kv-space", type=click.IntRange(min=1), help="GiB of KV cache on a CPU.")
def serve(
    model: str,
    vllm_flags: tuple[str, ...],
    extra: Mapping[str, object],
    self_check: bool,
    cpu_kv_space: int | None,
) -> None:
    """Run vLLM's OpenAI server with routed cartridges; flags after -- go to vLLM."""
    from kri_core.models import resolve_model
    from kri_core.substrate.vllm.launching import (
        check_first,
        check_offers,
        engine_flags,
        server_command,
    )

    flags = engine_flags(resolve_model(model), extra, vllm_flags)
    check_offers(extra, vllm_flags)
    if cpu_kv_space is not None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_kv_space)
    if self_check:
        check_first(flags)
    command = server_command(flags, transfer_config(extra))
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - signals must reach the server itself
