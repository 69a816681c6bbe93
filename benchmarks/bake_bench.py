"""What baking costs: seconds and peak memory per scorer, and KRI-D against one prefill per block.

`make bake-bench`. On the embedded model in float32 and a cartridge of 2 048 tokens, each scorer in
a process of its own, so that none stands on what another left behind. Seconds are the process's own
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
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from attrs import frozen

from kri_core.artifacts import calibration_path, write_calibration
from kri_core.bake import bake
from kri_core.cli.output import print_table, size
from kri_core.demo import PROBES, document, prompt
from kri_core.errors import KriError, one_line
from kri_core.grammar import parse_scorer
from kri_core.models import resolve_model
from kri_core.probe import ProbeText, Removal
from kri_core.registry import Registry
from kri_core.stack import Member
from kri_core.substrate.hf import (
    HfModel,
    HfProbe,
    build_cartridge,
    calibrate,
    load_model,
    probe_texts,
)
from kri_core.types import Cartridge
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


@frozen(eq=False)
class Bench:
    """The model, the cartridge and the probe texts, loaded once; each measurement is a fork."""

    model: HfModel
    cartridge: Cartridge
    texts: tuple[ProbeText, ...]
    registry: Registry

    @classmethod
    def load(cls) -> Bench:
        """The embedded model and the shipped document."""
        model = load_model(resolve_model("smollm2-135m"), dtype="float32", device="cpu")
        built = build_cartridge(
            model, document(), cart_id="bench", block_size=BLOCK_SIZE, max_tokens=TOKENS
        )
        return cls(model, built, probe_texts(model, [prompt(PROBES[0])]), Registry.discover())

    def calibrate(self, home: Path) -> None:
        """The bench's own calibration, of a text that is short: the numbers do not matter."""
        os.environ["KRI_HOME"] = str(home)
        calibration = calibrate(self.model, document()[:2000])
        path = calibration_path(calibration.model_fingerprint)
        path.parent.mkdir()
        write_calibration(calibration, path)

    def probe(self) -> HfProbe:
        """One that has computed nothing yet."""
        return HfProbe(self.model, self.cartridge, self.texts, BATCH)

    def member(self, name: str) -> Member:
        """A scorer."""
        return Member.load(self.registry, "scorer", parse_scorer(name))

    def bake_by(self, *names: str) -> Callable[[], object]:
        """A bake, to be run and run again."""
        scorers = [self.member(name) for name in names]
        return lambda: list(bake(self.cartridge, scorers, self.probe()))

    def warm_up(self) -> None:
        """Weights that are mapped from a file are in a fork only once it has read them."""
        self.probe().forward(self.texts[0].token_ids, read=("logits",))

    def cost_of(self, name: str) -> Cost | str:
        """A scorer's cost, or why it cannot be had."""
        try:
            bake_once, seconds = self.bake_by(name), list[float]()
            self.warm_up()
            measured = lambda: seconds.extend(_timed(bake_once) for _ in range(RUNS))  # noqa: E731
            peak, exact = extra_peak(measured)
        except KriError as error:
            return one_line(error)
        return Cost(statistics.median(seconds), peak, exact)

    def shares_of_first(self, names: Sequence[str]) -> dict[str, float]:
        """A bake with a second scorer over one by FIRST, for each that watches; in turns."""
        others = [it for it in names if it != FIRST and self.member(it).answers(WATCH)]
        bakes = {FIRST: self.bake_by(FIRST)} | {it: self.bake_by(FIRST, it) for it in others}
        taken = {name: list[float]() for name in bakes}
        self.warm_up()
        for _ in range(RUNS):
            for name, bake_once in bakes.items():
                taken[name].append(_timed(bake_once))
        alone = statistics.median(taken.pop(FIRST))
        return {name: statistics.median(runs) / alone for name, runs in taken.items()}

    def removals(self) -> tuple[float, float]:
        """Seconds of a leave-one-out sweep by masking, and by prefills of a sample, scaled."""
        count = self.cartridge.layout.num_blocks
        sample = [count * (2 * i + 1) // (2 * SAMPLE) for i in range(SAMPLE)]
        self.warm_up()
        masked = [_timed(lambda: self._leave_out(range(count), "mask")) for _ in range(RUNS)]
        again = [_timed(lambda: self._leave_out(sample, "reprefill")) for _ in range(RUNS)]
        return statistics.median(masked), statistics.median(again) * count / SAMPLE

    def _leave_out(self, blocks: Sequence[int], removal: Removal) -> None:
        probe, count = self.probe(), self.cartridge.layout.num_blocks
        for at in range(0, len(blocks), BATCH):
            some = list(blocks[at : at + BATCH])
            visible = torch.ones(len(some), count, dtype=torch.bool)
            visible[range(len(some)), some] = False
            text = self.texts[0].token_ids
            probe.forward(text, read=("hidden", "logits"), visible=visible, removal=removal)


def main() -> None:
    """Print what each scorer costs, what a second one adds, and what KRI-D saves."""
    torch.set_num_threads(1)  # a pool of threads does not outlive a fork
    rows = [row for row in Registry.discover().rows if row.slot == "scorer"]
    skipped = {row.name: row.reason for row in rows if row.state != "ok"}
    names = [WRITTEN.get(row.name, row.name) for row in rows if row.state == "ok"]
    costs, bench = dict[str, Cost](), Bench.load()
    with TemporaryDirectory() as home:
        bench.calibrate(Path(home))
        for name in names:
            cost = apart(bench.cost_of, name)
            (costs if isinstance(cost, Cost) else skipped)[name] = cost
            print(name, cost, file=sys.stderr)
        shares = apart(bench.shares_of_first, list(costs)) if FIRST in costs else {}
        masked, prefilled = apart(bench.removals)
    _print_costs(costs, skipped, bench.cartridge)
    _print_shares(shares)
    _print_removals(bench, masked, prefilled)


def apart(work: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    """Run in a fork of this process: what it holds and leaves behind is its own."""
    fork = get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=lambda: theirs.send(work(*arguments)))
    process.start()
    theirs.close()
    result = ours.recv()
    process.join()
    return result


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


def _print_costs(
    costs: Mapping[str, Cost], skipped: Mapping[str, str], cartridge: Cartridge
) -> None:
    print(
        f"{platform.machine()}, one thread, torch {torch.__version__}, float32, {TOKENS} tokens in "
        f"blocks of {BLOCK_SIZE}, medians of {RUNS}; each scorer in a process of its own\n"
    )
    rows = [
        (name, f"{cost.seconds:.2f}", ("" if cost.exact else "at most ") + size(cost.peak))
        for name, cost in costs.items()
    ]
    kv_bytes = cartridge.kv.nbytes + cartridge.tail.nbytes
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


def _print_removals(bench: Bench, masked: float, prefilled: float) -> None:
    probe_tokens, num_blocks = len(bench.texts[0].token_ids), bench.cartridge.layout.num_blocks
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
