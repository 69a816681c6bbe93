"""What baking costs: seconds and peak memory per scorer, and KRI-D against one prefill per block.

`make bake-bench`. On the embedded model in float32 and a cartridge of 2 048 tokens, each scorer in
a fresh process, so that none stands on what another left behind. Seconds are the process's own
(CPU time) and medians, as the machine is shared. Peak memory is the most that the process held
(Linux's VmHWM, started anew) over what it held with the model and the cartridge loaded and the
model run once.
"""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from attrs import frozen

from kri_core.artifacts import calibration_path, read_cartridge, write_calibration, write_cartridge
from kri_core.bake import bake
from kri_core.cli.output import print_table, size
from kri_core.demo import PROBES, document, prompt
from kri_core.errors import KriError, one_line
from kri_core.grammar import parse_scorer
from kri_core.models import resolve_model
from kri_core.probe import Removal
from kri_core.registry import Registry
from kri_core.stack import Member
from kri_core.substrate.hf import HfProbe, build_cartridge, calibrate, load_model, probe_texts
from kri_core.watching import WATCH

TOKENS = 2048
BLOCK_SIZE = 16
BATCH = 16
RUNS = int(os.environ.get("KRI_BENCH_RUNS", "3"))
SAMPLE = 3  # blocks that are left out by a prefill each, to be scaled to all
DOCS_TOKENS, DOCS_PROBE = 8192, 64  # the worked example of ALGORITHMS 1.4
FIRST = "attention-prefill"  # whose pass a second scorer of the attention family shares
WRITTEN = {"kvpress": "kvpress:knorm"}  # one that stands for many
MOST_MORE = 1.15  # what a bake with a second one may take of the first alone, issue 3


@frozen
class Cost:
    """Of one scorer; a text instead says why it has none."""

    seconds: float
    peak: int
    exact: bool  # whether the peak could be started anew; else loading the model is in it


class Bench:
    """A process's model, cartridge and probe texts."""

    def __init__(self, model: str, cartridge: Path) -> None:
        self.model = load_model(model, dtype="float32", device="cpu")
        self.cartridge = read_cartridge(cartridge)
        self.texts = probe_texts(self.model, [prompt(PROBES[0])])
        self.registry = Registry.discover()

    def probe(self) -> HfProbe:
        """One that has computed nothing yet."""
        return HfProbe(self.model, self.cartridge, self.texts, BATCH)

    def warm_up(self) -> None:
        """Hold what the first forward loads and the cartridge's pages, which are mapped."""
        self.probe().forward(self.texts[0].token_ids, read=("logits",))
        self.cartridge.kv.sum()

    def bake_by(self, names: Sequence[str]) -> Callable[[], object]:
        """A bake, to be run and run again."""
        scorers = self._members(names)
        return lambda: list(bake(self.cartridge, scorers, self.probe()))

    def watching(self, names: Sequence[str]) -> list[str]:
        """Those that read the document's own attention."""
        members = zip(names, self._members(names), strict=True)
        return [name for name, member in members if member.answers(WATCH)]

    def _members(self, names: Sequence[str]) -> list[Member]:
        return [Member.load(self.registry, "scorer", parse_scorer(name)) for name in names]


def main() -> None:
    """Print what each scorer costs, what a second one adds, and what KRI-D saves."""
    rows = [row for row in Registry.discover().rows if row.slot == "scorer"]
    skipped = {row.name: row.reason for row in rows if row.state != "ok"}
    names = [WRITTEN.get(row.name, row.name) for row in rows if row.state == "ok"]
    costs = dict[str, Cost]()
    with TemporaryDirectory() as folder:
        model, cartridge = resolve_model("smollm2-135m"), Path(folder, "bench.safetensors")
        os.environ["KRI_HOME"] = folder  # for the calibration, which is the bench's own
        num_blocks, kv_bytes = _apart(prepare, model, cartridge)
        for name in names:
            cost = _apart(cost_of, model, cartridge, name)
            (costs if isinstance(cost, Cost) else skipped)[name] = cost
        shares = _apart(shares_of_first, model, cartridge, list(costs)) if FIRST in costs else {}
        probe_tokens, masked, prefilled = _apart(removals, model, cartridge)
    _print_costs(costs, skipped, kv_bytes)
    _print_shares(shares)
    _print_removals(num_blocks, probe_tokens, masked, prefilled)


def _apart(work: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    """Run in a fresh process."""
    print(f"{work.__name__} {arguments[-1]}", file=sys.stderr)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def prepare(model: str, cartridge: Path) -> tuple[int, int]:
    """Write the cartridge and the model's calibration; blocks and bytes of KV."""
    loaded = load_model(model, dtype="float32", device="cpu")
    built = build_cartridge(
        loaded, document(), cart_id="bench", block_size=BLOCK_SIZE, max_tokens=TOKENS
    )
    write_cartridge(built, cartridge)
    calibration = calibrate(loaded, document())
    path = calibration_path(calibration.model_fingerprint)
    path.parent.mkdir()
    write_calibration(calibration, path)
    return built.layout.num_blocks, built.kv.nbytes + built.tail.nbytes


def cost_of(model: str, cartridge: Path, name: str) -> Cost | str:
    """A scorer's cost, or why it cannot be had."""
    try:
        bench = Bench(model, cartridge)
        bake_once = bench.bake_by([name])
        bench.warm_up()
        seconds = list[float]()
        peak, exact = extra_peak(lambda: seconds.extend(_timed(bake_once) for _ in range(RUNS)))
    except KriError as error:
        return one_line(error)
    return Cost(statistics.median(seconds), peak, exact)


def shares_of_first(model: str, cartridge: Path, names: Sequence[str]) -> dict[str, float]:
    """What a bake with a second scorer takes of one by FIRST, for each that watches; in turns."""
    bench = Bench(model, cartridge)
    seconds = [name for name in bench.watching(names) if name != FIRST]
    bakes = {name: bench.bake_by([FIRST, name]) for name in seconds} | {
        FIRST: bench.bake_by([FIRST])
    }
    bench.warm_up()
    taken = {name: list[float]() for name in bakes}
    for _ in range(RUNS):
        for name, bake_once in bakes.items():
            taken[name].append(_timed(bake_once))
    alone = statistics.median(taken.pop(FIRST))
    return {name: statistics.median(runs) / alone for name, runs in taken.items()}


def removals(model: str, cartridge: Path) -> tuple[int, float, float]:
    """Probe tokens; seconds of a leave-one-out sweep by masking, and by prefills, scaled."""
    bench = Bench(model, cartridge)
    num_blocks, text = bench.cartridge.layout.num_blocks, bench.texts[0].token_ids

    def left_out(blocks: Sequence[int], removal: Removal) -> None:
        probe = bench.probe()
        for at in range(0, len(blocks), BATCH):
            some = list(blocks[at : at + BATCH])
            visible = torch.ones(len(some), num_blocks, dtype=torch.bool)
            visible[range(len(some)), some] = False
            probe.forward(text, read=("hidden", "logits"), visible=visible, removal=removal)

    sample = [num_blocks * (2 * i + 1) // (2 * SAMPLE) for i in range(SAMPLE)]
    bench.warm_up()
    masked = [_timed(lambda: left_out(range(num_blocks), "mask")) for _ in range(RUNS)]
    prefilled = [_timed(lambda: left_out(sample, "reprefill")) for _ in range(RUNS)]
    scaled = statistics.median(prefilled) * num_blocks / SAMPLE
    return len(text), statistics.median(masked), scaled


def extra_peak(run: Callable[[], object]) -> tuple[int, bool]:
    """The most bytes held during a call over those held before, and whether that is exact."""
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free already would be taken unseen
    with suppress(OSError):  # a container may forbid it
        Path("/proc/self/clear_refs").write_text("5")
    before, exact = _memory("VmRSS"), _memory("VmHWM") - _memory("VmRSS") < 1 << 20
    run()
    return max(0, _memory("VmHWM") - before), exact


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _timed(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _print_costs(costs: Mapping[str, Cost], skipped: Mapping[str, str], kv_bytes: int) -> None:
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"float32, {TOKENS} tokens in blocks of {BLOCK_SIZE}, medians of {RUNS}; each scorer in a "
        "process of its own\n"
    )
    rows = [
        (name, f"{cost.seconds:.2f}", ("" if cost.exact else "at most ") + size(cost.peak))
        for name, cost in costs.items()
    ]
    print_table(("scorer", "CPU seconds", "peak memory"), rows)
    print(f"\nIn it for all that run the model: the KV laid out for attention, {size(kv_bytes)}.")
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")


def _print_shares(shares: Mapping[str, float]) -> None:
    if not shares:
        return
    print(f"\nCPU seconds of a bake with {FIRST} and a second scorer, of {FIRST} alone:")
    for name, share in shares.items():
        verdict = "" if share <= MOST_MORE else f"   more than {MOST_MORE}"
        print(f"{name:18} {share:.2f}{verdict}")


def _print_removals(num_blocks: int, probe_tokens: int, masked: float, prefilled: float) -> None:
    here = (TOKENS - BLOCK_SIZE + probe_tokens) / probe_tokens
    there = (DOCS_TOKENS + DOCS_PROBE) / DOCS_PROBE
    print(
        f"\nkri-d by masking: {masked:.1f} s; by one prefill per block: {prefilled:.0f} s "
        f"(measured on {SAMPLE} blocks, scaled to {num_blocks}): {prefilled / masked:.0f} times\n"
        f"token-forwards say {here:.0f} times here, {there:.0f} times for {DOCS_TOKENS} tokens and "
        f"{DOCS_PROBE} of probe"
    )


if __name__ == "__main__":
    main()
