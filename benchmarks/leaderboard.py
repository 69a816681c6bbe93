"""The first board: every installed scorer and policy on the needle tasks, with and without xa25.

`make leaderboard`. Writes records under results/ and the pages made of them under docs/. A killed
run goes on; what is recorded already is not run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile

from attrs import frozen

from kri_core.artifacts import find_calibration
from kri_core.demo import document
from kri_core.models import resolve_model
from kri_core.registry import Registry
from kri_core.substrate.hf import load_model

MODEL = "smollm2-135m"
JOBS = os.environ.get("KRI_BENCH_JOBS", "2")
RESULTS, DOCS = Path("results"), Path("docs")
PAGES = [DOCS / f"leaderboard.{ending}" for ending in ("md", "json", "html")]
PUBLISHED = DOCS / "published.json"
TAGS = ("A0R0K16", "A1R2K13")
REPAIR = "+xa25"
FAMILIES = {"kvpress"}  # needs a press, and an environment of its own
NULLS = {"random"}  # every run has it with 20 seeds
FORMS = (  # of a scorer, beside its defaults
    "kri-q[pool_tokens=mean]",
    "kri-d-kv-sum~top-k[detrend=33]",
    "kri-d~top-k[detrend=33]",
    "kri-d-kv-sum~mmr",
    "kri-d-kv-sum~facility",
    "kri-d-kv-sum~logdet",
    "kri-d-kv-sum~residual",
    "~uniform",
    "~random-middle",
)
SLOW = ("solo", "kri-d-greedy")  # selectors that run the model for every block they weigh
POLICIES = ("recency[budget=16]+xa25", "hybrid[anchor=4,recent=12]+xa25")  # else run unasked
OTHER_READINGS = (  # queries of the whole document, KL after every probe token
    "A1R2K13(kri-q[source=full])",
    "A1R2K13(kri-q[source=full,pool_tokens=mean])",
    "A1R2K13(quest[source=full])",
    "A1R2K13(kri-d[readout=all])",
)
FEW = ("kri-d-kv-sum", "kri-q", "attention-prefill", "eigen")  # for several budgets


@frozen
class Run:
    """One `kri-core eval run`."""

    task: str
    docs: int
    stacks: tuple[str, ...]
    more: tuple[str, ...] = ()

    def start(self) -> None:
        """Run it, or what is left of it."""
        stacks = [text for stack in self.stacks for text in ("--stack", stack)]
        kri_core(
            *("eval", "run", "--task", self.task, "--docs", str(self.docs), *stacks),
            *("--model", MODEL, "--jobs", JOBS, "--out", str(RESULTS), *self.more),
        )


def runs() -> Iterator[Run]:
    """The whole board, within an hour of two cores.

    The small task shows budgets, placement, and the selectors that would not end within it.
    """
    plain = [f"{tag}({form})" for tag, form in product(TAGS, forms())]
    repaired = [f"{stack}{REPAIR}" for stack in plain]
    yield Run("needle8", 25, (*plain, *repaired, *POLICIES, *OTHER_READINGS))
    few = tuple(f"A1R2K13({scorer})" for scorer in FEW)
    yield Run("needle8-fast", 4, few, ("--k", "4,8,16", "--placement"))
    pairs = product(SLOW, ("", REPAIR))
    slow = tuple(f"A1R2K5(kri-d-kv-sum~{selector}){repair}" for selector, repair in pairs)
    yield Run("needle8-fast", 4, slow)


def forms() -> list[str]:
    """Every installed scorer as it is, and FORMS."""
    rows = [row for row in Registry.discover().rows if row.slot == "scorer"]
    names = [row.name for row in rows if row.name not in FAMILIES | NULLS]
    return [*names, *FORMS]


def calibrate() -> None:
    """What kri-t reads, of the demo's document, unless the user has one."""
    fingerprint = load_model(resolve_model(MODEL), dtype="float32").identity.fingerprint
    if find_calibration(fingerprint) is None:
        with NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(document())
            text.flush()
            kri_core("calibrate", "--model", MODEL, "--dtype", "float32", "--text", text.name)


def kri_core(*arguments: str) -> None:
    """Run the command line in this environment; end with it if it fails."""
    done = subprocess.run([sys.executable, "-m", "kri_core.cli", *arguments], check=False)  # noqa: S603
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    calibrate()
    for one in runs():
        one.start()
    outs = [text for page in PAGES for text in ("--out", str(page))]
    kri_core("eval", "leaderboard", str(RESULTS), "--published", str(PUBLISHED), *outs)
    kri_core("eval", "kill-log", "--results", str(RESULTS), "--out", str(DOCS / "kill-log.md"))
    made = [str(path) for path in (*PAGES, DOCS / "kill-log.md")]
    kri_core("eval", "verify", "--published", str(PUBLISHED), str(RESULTS), *made)
