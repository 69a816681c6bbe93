"""Whether routed answers are exact here, with this model and these flags, before any is served.

`python -m kri_core.substrate.vllm.self_check <engine flags>`, the child of `serve --self-check`.
A prompt of two blocks, a tail and a question (44 tokens at a block size of 16) is answered three
ways: dense, from all blocks, and from the second block alone. The second must equal the first, the
third must equal transformers over the same block: with all blocks alone nothing would be absent,
and absence is the point.
"""

from __future__ import annotations

import gc
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from attrs import frozen
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kri_core.artifacts import write_cartridge
from kri_core.errors import EngineError, KriError
from kri_core.substrate.hf import answer, build_from_tokens, load_model
from kri_core.substrate.vllm.plugin import CONNECTOR

logger = init_logger("vllm.kri_core.self_check")

TEXT = (  # says nothing twice, so that a block too many or too few shows
    "Every pump is checked before it is served. The red one stands in the cellar and was bought in "
    "Prague; the blue one, twice as heavy, came from a mill that burned down in 1911. Nobody knows "
    "who painted the third, but its valve opens at nine bar and its oil is changed on Mondays. "
)
TAIL, QUESTION, STEPS = 4, 8, 8  # tokens
BLOCK_SIZE = 128  # where no flag gives one: a multiple of every back end's own
ROUTED, KEPT = "A0R1K0", (1,)
# Of log-probabilities. SmolLM2-135M on a CPU differs by 1e-5 in float32 and 8e-2 in bfloat16; one
# block too many or too few moves its first token by 0.5 and more.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 2.5e-1}
TOP = 5  # tokens of each step whose log-probabilities are looked at

Chosen = Sequence[tuple[int, float]]  # tokens and their log-probabilities
Steps = Sequence[Mapping[int, float]]  # log-probabilities of each step's best tokens, best first


@frozen
class Case:
    """A short cartridge on disk, a question, and transformers' answer from `KEPT` alone."""

    cart_id: str
    path: Path
    token_ids: tuple[int, ...]  # of the cartridge
    question: tuple[int, ...]
    reference: Chosen
    tolerance: float


def prepare(
    model: str, revision: str | None, dtype: torch.dtype, block_size: int, folder: Path
) -> Case:
    """Loads the model and leaves nothing of it in memory."""
    hf = load_model(model, revision, str(dtype).removeprefix("torch."))
    count = 2 * block_size + TAIL + QUESTION
    tokens = tuple(_tokens(hf.tokenizer, count))
    document, question = tokens[:-QUESTION], tokens[-QUESTION:]
    cartridge = build_from_tokens(hf, document, cart_id="self-check", block_size=block_size)
    path = folder / "self-check.safetensors"
    write_cartridge(cartridge, path)
    said = answer(hf, cartridge, KEPT, question, STEPS)
    reference = tuple(zip(said.token_ids, said.logprobs, strict=True))
    return Case(cartridge.cart_id, path, document, question, reference, TOLERANCE[dtype])


def check(llm: Any, case: Case) -> None:  # noqa: ANN401
    """Ask three times and compare; an EngineError says what differs."""
    named = {"cartridge_id": case.cart_id}
    asked = ({"enabled": False}, named | {"stack": "whole"}, named | {"stack": ROUTED})
    prompt = {"prompt_token_ids": [*case.token_ids, *case.question]}
    outputs = llm.generate([prompt] * 3, [_sampling(params) for params in asked], use_tqdm=False)
    dense, whole, routed = (_steps(output) for output in outputs)
    chosen = [next(iter(step.items())) for step in dense]
    for name, reference, steps in (
        ("all blocks against a dense prefill", chosen, whole),
        (f"block {KEPT[0]} alone against transformers", case.reference, routed),
    ):
        found = disagreement(reference, steps, case.tolerance)
        if found is not None:
            raise EngineError(
                f"self-check: {name}: {found}; routing is not exact here, do not serve it"
            )


def disagreement(reference: Chosen, steps: Steps, tolerance: float) -> str | None:
    """What differs first; greedy tokens may part only where each may be as likely as the other."""
    if len(steps) < len(reference):
        return f"{len(steps)} of {len(reference)} tokens came (the engine's log says why)"
    for number, ((token, wanted), step) in enumerate(zip(reference, steps, strict=False)):
        best = next(iter(step))
        if token != best and step.get(token, -torch.inf) < step[best] - 2 * tolerance:
            return f"token {number} is {best}, it should be {token}"
        if abs(step[token] - wanted) > tolerance:
            return (
                f"token {number} has log-probability {step[token]:.4f}, it should have "
                f"{wanted:.4f} (within {tolerance:g})"
            )
        if token != best:
            return None  # from here on the two read different texts
    return None


def _tokens(tokenizer: Any, count: int) -> Iterator[int]:  # noqa: ANN401
    """The model's own tokens of a text that is long enough."""
    text = TEXT
    while len(tokens := tokenizer(text)["input_ids"]) < count:
        text += text
    yield from tokens[:count]


def _sampling(params: Mapping[str, object]) -> Any:  # noqa: ANN401
    return SamplingParams(
        temperature=0,
        max_tokens=STEPS,
        logprobs=TOP,
        ignore_eos=True,
        extra_args={"kv_transfer_params": dict(params)},
    )


def _steps(output: Any) -> Steps:  # noqa: ANN401
    """The sampled token first: at temperature 0 it is the best."""
    (one,) = output.outputs
    steps = zip(one.token_ids, one.logprobs or (), strict=False)
    return [
        {token: step[token].logprob} | {other: held.logprob for other, held in step.items()}
        for token, step in steps
    ]


def _engine_args(flags: Sequence[str]) -> EngineArgs:
    """The server's flags; those that are not the engine's, such as --port, are left out."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(allow_abbrev=False))
    found: Namespace = parser.parse_known_args(list(flags))[0]
    return EngineArgs.from_cli_args(found)


def run(flags: Sequence[str]) -> None:
    """An EngineError unless routing is exact with these flags."""
    arguments = _engine_args(flags)
    dtype = arguments.create_model_config().dtype
    with TemporaryDirectory() as folder:
        size = arguments.block_size or BLOCK_SIZE
        case = prepare(arguments.model, arguments.revision, dtype, size, Path(folder))
        gc.collect()
        torch.cuda.empty_cache()
        arguments.kv_transfer_config = KVTransferConfig(
            kv_connector=CONNECTOR,
            kv_role="kv_both",
            kv_connector_extra_config={"cartridges": {case.cart_id: str(case.path)}},
        )
        check(LLM.from_engine_args(arguments), case)
    logger.info("self-check: routed answers are exact (within %g)", case.tolerance)


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except KriError as error:
        sys.exit(f"error: {error}")
