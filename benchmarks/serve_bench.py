"""What serving costs: routed against dense requests in a real vLLM, side by side in one run.

`make bench-serve`. Time to first token (TTFT) of a question of 32 tokens after documents of three
lengths, on the embedded model in bfloat16: K=16 blocks against a full prefill, against vLLM's own
prefix-cache hit, and against loading every block of the cartridge. "Cold" rows are not in the
engine's cache (the file is in the operating system's); "resident" rows are. The floor stands
beside them: the same question with nothing before it. Then decoding, KV blocks, and how many
requests of distinct documents run at once in a small pool. Medians; what is compared is measured in
turn. The document's text is repeated to the length that is wanted: what is timed does not depend on
what it says.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from attrs import frozen
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed import cleanup_dist_env_and_memory

from kri_core.artifacts import seal, write_cartridge
from kri_core.cli.output import print_table
from kri_core.demo import document
from kri_core.models import resolve_model
from kri_core.substrate.hf import build_from_tokens, document_ids, load_model
from kri_core.types import Cartridge

RUNS = int(os.environ.get("KRI_BENCH_RUNS", "5"))
LENGTHS = tuple(map(int, os.environ.get("KRI_BENCH_TOKENS", "2048,4096,7488").split(",")))
BLOCK_SIZE = 16
QUESTION_TOKENS = 32  # another question each time: what is cached is the document
ROUTED = {"stack": "A1R2K13(~random-middle)"}  # which 16 blocks they are does not change the time
WHOLE, DENSE = {"stack": "whole"}, {"enabled": False}
DECODED = 32  # tokens
POOL = 600  # blocks of the small pool, vLLM's null block among them
DISTINCT = 40  # documents of the shortest length that compete for it
FLOORS = {"prefill at the shortest": 30, "prefill at the longest": 200}  # issue 4
MOST_OF_HIT = 0.75  # of a prefix-cache hit's TTFT, issue 4


@frozen
class Case:
    """One way to serve a question: what the request says, and what the cache holds before."""

    name: str
    params: Mapping[str, object]
    resident: bool
    document: bool = True


FULL = Case("full prefill", DENSE, False)
HIT = Case("vLLM's prefix-cache hit", DENSE, True)
ALL_COLD = Case("all blocks, cold", WHOLE, False)
ALL_RESIDENT = Case("all blocks, resident", WHOLE, True)
K_COLD = Case("K=16, cold", ROUTED, False)
K_RESIDENT = Case("K=16, resident", ROUTED, True)
FLOOR = Case("the question alone", DENSE, False, document=False)  # what no prefix can go below
CASES = (FULL, HIT, ALL_COLD, ALL_RESIDENT, K_COLD, K_RESIDENT, FLOOR)


class Engine:
    """A vLLM engine in this process, and the prompts of its cartridges."""

    def __init__(self, llm: LLM, cartridges: Mapping[str, Cartridge]) -> None:
        self.llm, self.cartridges, self._questions = llm, cartridges, count()
        self.scheduler = llm.llm_engine.engine_core.engine_core.scheduler

    def prompt(self, name: str | None) -> dict[str, list[int]]:
        """The document's tokens, if any, and those of a question that was not asked before."""
        first = 1000 + next(self._questions)
        document = () if name is None else self.cartridges[name].token_ids
        return {"prompt_token_ids": [*document, *range(first, first + QUESTION_TOKENS)]}

    def ask(self, name: str | None, params: Mapping[str, object], tokens: int) -> float:
        """Seconds until the answer of so many tokens is there."""
        start = time.perf_counter()
        (said,) = self.llm.generate([self.prompt(name)], [sampling(tokens, params)], use_tqdm=False)
        seconds = time.perf_counter() - start
        if len(said.outputs[0].token_ids) != tokens:
            raise SystemExit(f"a request ended early: {said.outputs[0].finish_reason}")
        return seconds

    def forget(self) -> None:
        """An empty prefix cache."""
        if not self.scheduler.kv_cache_manager.reset_prefix_cache():
            raise SystemExit("the prefix cache is in use")

    @property
    def taken(self) -> int:
        """KV blocks that live requests hold."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())


def sampling(tokens: int, params: Mapping[str, object]) -> SamplingParams:
    """Greedy, to the given length."""
    extra = {"kv_transfer_params": dict(params)}
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)


@contextmanager
def serving(
    model: str,
    folder: Path,
    cartridges: Mapping[str, Cartridge],
    **more: Any,  # noqa: ANN401 - options of vLLM's
) -> Iterator[Engine]:
    """An engine that offers the cartridges, and none after it."""
    paths = {name: str(folder / f"{name}.safetensors") for name in cartridges}
    transfer = KVTransferConfig(
        kv_connector="CartridgeConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cartridges": paths},
    )
    options = {"block_size": BLOCK_SIZE, "dtype": "bfloat16", "enforce_eager": True} | more
    llm = LLM(model=model, kv_transfer_config=transfer, max_num_seqs=128, **options)
    try:
        yield Engine(llm, cartridges)
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def build(model_path: str, folder: Path) -> dict[str, Cartridge]:
    """A cartridge of each length, and many of the shortest whose first token differs."""
    model = load_model(model_path, dtype="bfloat16", device="cpu")
    text = document_ids(model, document(), False)
    made = {}
    for length in LENGTHS:
        tokens = list(islice(cycle(text), length))
        name = f"{length} tokens"
        made[name] = build_from_tokens(model, tokens, cart_id=name, block_size=BLOCK_SIZE)
    base = made[f"{LENGTHS[0]} tokens"]
    for number in range(DISTINCT):
        tokens = (2000 + number, *base.token_ids[1:])
        made[f"document {number}"] = seal(
            f"document {number}", BLOCK_SIZE, base.model, tokens, base.kv, base.tail
        )
    for name, cartridge in made.items():
        write_cartridge(cartridge, folder / f"{name}.safetensors")
    return made


def first_token(engine: Engine, name: str) -> dict[str, float]:
    """Median seconds to the first token by case; the cases take turns, cold before resident."""
    seconds: dict[str, list[float]] = {case.name: [] for case in CASES}
    for _ in range(RUNS):
        for case in CASES:
            if not case.resident:  # a resident case finds what its cold one has left
                engine.forget()
            asked = name if case.document else None
            seconds[case.name].append(engine.ask(asked, case.params, 1))
    return {case: statistics.median(times) for case, times in seconds.items()}


def decoding(engine: Engine, name: str) -> dict[str, float]:
    """Median tokens per second after the first, dense and routed, both from resident rows."""
    rates: dict[str, list[float]] = {HIT.name: [], K_RESIDENT.name: []}
    engine.forget()
    for case in (HIT, K_RESIDENT):
        engine.ask(name, case.params, 1)
    for _ in range(RUNS):
        for case in (HIT, K_RESIDENT):
            first = engine.ask(name, case.params, 1)
            rates[case.name].append(DECODED / (engine.ask(name, case.params, DECODED + 1) - first))
    return {case: statistics.median(found) for case, found in rates.items()}


def at_once(engine: Engine, names: Sequence[str], params: Mapping[str, object]) -> tuple[int, int]:
    """The most requests that ran at once, and the most blocks they held."""
    engine.forget()
    core, running, blocks = engine.llm.llm_engine, 0, 0
    for number, name in enumerate(names):
        core.add_request(f"{number} {params}", engine.prompt(name), sampling(4, params))
    while core.has_unfinished_requests():
        core.step()
        running = max(running, len(engine.scheduler.running))
        blocks = max(blocks, engine.taken)
    return running, blocks


def main() -> None:
    """Print the tables."""
    model = resolve_model("smollm2-135m")
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}; ", end="")
    print(f"{torch.get_num_threads()} threads; medians of {RUNS}")
    with TemporaryDirectory() as found:
        folder = Path(found)
        cartridges = build(model, folder)
        long = {name: cartridges[name] for name in (f"{length} tokens" for length in LENGTHS)}
        with serving(model, folder, long, max_model_len=8192) as engine:
            report_times(engine, list(long))
        distinct = {name: held for name, held in cartridges.items() if name not in long}
        pool = {"max_model_len": 4096, "num_gpu_blocks_override": POOL}
        with serving(model, folder, distinct, **pool) as engine:
            report_pool(engine, list(distinct))


def report_times(engine: Engine, names: Sequence[str]) -> None:
    """TTFT and decoding by length."""
    engine.ask(names[0], WHOLE, 2)  # warm up
    ttft = {name: first_token(engine, name) for name in names}
    rows = [[case.name, *(f"{ttft[name][case.name]:.3f}" for name in names)] for case in CASES]
    print_table(["seconds to the first token", *names], rows)
    rows = [
        [f"{other.name} / {mine.name}"]
        + [f"{ttft[name][other.name] / ttft[name][mine.name]:.2f}" for name in names]
        for mine in (K_COLD, K_RESIDENT)
        for other in (FULL, HIT, ALL_COLD, ALL_RESIDENT, FLOOR)
    ]
    print_table(["ratio", *names], rows)
    rates = {name: decoding(engine, name) for name in names}
    rows = [
        [case.name, *(f"{rates[name][case.name]:.1f}" for name in names)]
        for case in (HIT, K_RESIDENT)
    ]
    print_table(["tokens per second after the first", *names], rows)
    say_bars(ttft, names)


def say_bars(ttft: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> None:
    """The bars of issue 4, met or not."""
    for (what, floor), name in zip(FLOORS.items(), (names[0], names[-1]), strict=True):
        found = ttft[name][FULL.name] / ttft[name][K_COLD.name]
        print(f"K=16, cold, against {what} ({name}): {found:.0f} times; at least {floor} wanted")
    for name in names:
        found = ttft[name][K_RESIDENT.name] / ttft[name][HIT.name]
        print(
            f"K=16 against a prefix-cache hit ({name}): {found:.2f}; at most {MOST_OF_HIT} wanted"
        )


def report_pool(engine: Engine, names: Sequence[str]) -> None:
    """Blocks of one request and requests at once."""
    rows = []
    for what, params in (("dense", DENSE), ("all blocks", WHOLE), ("K=16", ROUTED)):
        _, alone = at_once(engine, names[:1], params)
        running, blocks = at_once(engine, names, params)
        rows.append([what, str(alone), str(running), str(blocks)])
    head = [f"{len(names)} documents, {POOL - 1} blocks", "blocks of one", "at once", "blocks held"]
    print_table(head, rows)
    same = [names[0]] * len(names)
    rows = [
        [what, str(at_once(engine, same, params)[0])]
        for what, params in (("dense", DENSE), ("K=16", ROUTED))
    ]
    print_table(["one document for all", "at once"], rows)


if __name__ == "__main__":
    main()
