"""Every installed scorer on the embedded model, by bake and ask, twice: the same bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from kri_core.artifacts import read_prior
from kri_core.cli import loading, main
from kri_core.demo import document, prompt
from kri_core.models import get_model
from kri_core.registry import Registry

pytestmark = [pytest.mark.model, pytest.mark.slow]
TOKENS = 300  # 18 blocks of 16 and a tail
ROWS = [row for row in Registry.discover().rows if row.slot == "scorer"]
WRITTEN = {"kvpress": "kvpress:knorm"}  # one that stands for many
NEEDS = {"kvpress": "kvpress"}  # scorer → the module that its package does not insist on
by_scorer = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@pytest.fixture(scope="module")
def kri(tmp_path_factory):
    """Run `kri-core ARGS` in a folder of its own, in this process, with the model loaded once."""
    folder = tmp_path_factory.mktemp("scorers")
    (folder / "model").symlink_to(get_model("smollm2-135m"))
    (folder / "doc.txt").write_text(document()[:1500], encoding="utf-8")
    (folder / "probes.txt").write_text("\\n\\nThe machine is\n")

    def run(*arguments):
        patch.setattr(sys, "argv", ["kri-core", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, arguments

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("KRI_HOME", str(folder))  # the calibration is this test's own
        patch.setattr(loading, "load", cache(loading.load))
        model = ("--model", "model", "--dtype", "float32")
        run("calibrate", *model, "--text", "doc.txt")
        run("cartridge", "build", *model, "--text", "doc.txt", "--out", "doc.safetensors",
            "--max-tokens", str(TOKENS))  # fmt: skip
        yield run


@pytest.fixture(scope="module")
def priors(kri):
    """Scorer → its prior here and of a fresh process; one bake each, so watchers share a pass."""
    names = [row.name for row in ROWS if why_not(row) is None]
    written = [WRITTEN.get(name, name) for name in names]
    bake = ["bake", "--cartridge", "doc.safetensors", "--model", "model", "--probes", "probes.txt"]
    bake += [part for name in written for part in ("--scorer", name)]
    kri(*bake, "--out", "first")
    command = [sys.executable, "-m", "kri_core.cli", *bake, "--out", "second"]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    again = [Path(line) for line in done.stdout.splitlines()]
    return {name: (Path("first", it.name), it) for name, it in zip(names, again, strict=True)}


def why_not(row):
    """Why a scorer cannot be run here."""
    module = NEEDS.get(row.name)
    missing = module is not None and find_spec(module) is None
    return f"{row.name} needs {module}, which is not installed" if missing else row.reason or None


@by_scorer
def test_a_rerun_gives_the_same_prior_and_the_same_answer(row, kri, priors, capsys):
    if reason := why_not(row):
        pytest.skip(reason)

    first, second = map(read_prior, priors[row.name])
    assert contents(first).keys() == contents(second).keys() != set()
    for key, tensor in contents(first).items():
        assert tensor.equal(contents(second)[key]), key
    assert first.blocks_per_budget == second.blocks_per_budget
    answers = [ask(kri, str(path), capsys) for path in priors[row.name]]
    assert answers[0] == answers[1]
    assert len(answers[0]["selected_blocks"]) == 7
    assert len(answers[0]["token_ids"]) == 2


def contents(prior):
    scores = {} if prior.scores is None else {"scores": prior.scores.values}
    return {**scores, **prior.summary}


def ask(kri, prior, capsys):
    """The answer's record without its timings."""
    capsys.readouterr()
    kri("ask", "--cartridge", "doc.safetensors", "--prior", prior, "--stack", "A1R2K4", "--json",
        "--max-new-tokens", "2", prompt("Who designed the machine?"))  # fmt: skip
    record = json.loads(capsys.readouterr().out)
    del record["timings"]
    return record
