"""What baking costs: seconds and peak memory per scorer, and KRI-D against one prefill per block.

`make bake-bench`. Everything is measured side by side in one process on the embedded model in
float32 and a cartridge of 2 048 tokens; medians of several runs, as the machine is shared. Peak
memory is the rise of the process's resident set (Linux's VmHWM) over what it held before.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kri_core.bake import bake
from kri_core.cli.output import print_table, size
from kri_core.config import PluginRef
from kri_core.demo import PROBES, document, prompt
from kri_core.errors import KriError, one_line
from kri_core.models import resolve_model
from kri_core.registry import Registry
from kri_core.stack import Member
from kri_core.substrate.hf import HfProbe, build_cartridge, load_model, probe_texts

TOKENS = 2048
BLOCK_SIZE = 16
BATCH = 16
RUNS = int(os.environ.get("KRI_BENCH_RUNS", "3"))
SAMPLE = 3  # blocks that are left out by a prefill each, to be scaled to all
DOCS_TOKENS, DOCS_BLOCKS, DOCS_PROBE = 8192, 512, 64  # the worked example of ALGORITHMS 1.4
WATCHERS = ("attention-prefill", "h2o")  # two scorers of the attention family, if installed


def main() -> None:
    """Print two tables and one comparison."""
    model = load_model(resolve_model("smollm2-135m"), dtype="float32", device="cpu")
    cartridge = build_cartridge(
        model, document(), cart_id="bench", block_size=BLOCK_SIZE, max_tokens=TOKENS
    )
    texts = probe_texts(model, [prompt(PROBES[0])])
    registry = Registry.discover()

    def fresh() -> HfProbe:
        return HfProbe(model, cartridge, texts, BATCH)

    def bake_by(names: Sequence[str]) -> None:
        scorers = [Member.load(registry, "scorer", PluginRef(name)) for name in names]
        list(bake(cartridge, scorers, fresh()))

    threads = torch.get_num_threads()
    print(f"{platform.machine()}, {threads} threads, float32, {TOKENS} tokens, medians of {RUNS}\n")
    names = [row.name for row in registry.rows if row.slot == "scorer" and row.state == "ok"]
    print_table(("scorer", "seconds", "peak memory"), [_row(name, bake_by) for name in names])
    if set(WATCHERS) <= set(names):
        one = _median(lambda: bake_by(WATCHERS[:1]))
        two = _median(lambda: bake_by(WATCHERS))
        print(f"\n{' and '.join(WATCHERS)} in one bake: {two / one:.2f} of {WATCHERS[0]} alone")
    _compare_removals(fresh, cartridge.layout.num_blocks, len(texts[0].token_ids))


def _row(name: str, bake_by: Callable[[Sequence[str]], None]) -> tuple[str, str, str]:
    before = _reset_peak()
    try:
        seconds = _median(lambda: bake_by([name]))
    except KriError as error:
        return name, "-", one_line(error)
    return name, f"{seconds:.2f}", size(max(0, _memory("VmHWM") - before))


def _compare_removals(fresh: Callable[[], HfProbe], num_blocks: int, probe_tokens: int) -> None:
    """Seconds of a whole leave-one-out sweep by masking, and by prefills of a sample, scaled."""

    def left_out(blocks: Sequence[int], removal: str) -> None:
        probe = fresh()
        for at in range(0, len(blocks), BATCH):
            some = list(blocks[at : at + BATCH])
            visible = torch.ones(len(some), num_blocks, dtype=torch.bool)
            visible[range(len(some)), some] = False
            text = probe.texts[0].token_ids
            probe.forward(text, read=("hidden", "logits"), visible=visible, removal=removal)

    sample = [num_blocks * (2 * i + 1) // (2 * SAMPLE) for i in range(SAMPLE)]
    masked = _median(lambda: left_out(range(num_blocks), "mask"))
    prefilled = _median(lambda: left_out(sample, "reprefill")) * num_blocks / SAMPLE
    here = (TOKENS - BLOCK_SIZE + probe_tokens) / probe_tokens
    there = DOCS_BLOCKS * (DOCS_TOKENS + DOCS_PROBE) / (DOCS_BLOCKS * DOCS_PROBE)
    print(
        f"\nkri-d by masking: {masked:.1f} s; by one prefill per block: {prefilled:.0f} s "
        f"(measured on {SAMPLE} blocks, scaled to {num_blocks}): {prefilled / masked:.0f} times\n"
        f"token-forwards say {here:.0f} times here, {there:.0f} times for {DOCS_TOKENS} tokens and "
        f"{DOCS_PROBE} of probe"
    )


def _median(run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _reset_peak() -> int:
    """Start VmHWM anew; the resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
