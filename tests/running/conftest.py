"""A tiny model, a needle task of 640 bytes as tokens, and runs of it in this process."""

import json
import shutil

import pytest
import torch
from attrs import frozen

from kri_core.testing.tiny import save_tiny

TASK = ("--task", "needle8", "--set", "tokens=640", "--set", "needles=2", "--docs", "2")
STACK = "A1R2K5(kri-d-kv-sum)"


@frozen
class Lines:
    """A record's header and its items without what a second run need not repeat."""

    header: dict
    items: tuple

    @classmethod
    def read(cls, path):
        first, *others = map(json.loads, path.read_text().splitlines())
        for line in others:
            del line["seconds"], line["link"]  # the link covers the seconds
        return cls(first["header"], tuple(others))

    @property
    def row(self):
        header = self.header
        return header["stack"], header["probe_set"]


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """A folder with model/ and a cache that all runs share."""
    folder = tmp_path_factory.mktemp("bench")
    save_tiny(folder / "model", max_position_embeddings=1024)
    return folder


@pytest.fixture
def evaluate(kri, bench, tmp_path, monkeypatch):
    """Run `eval run` with arguments; the process keeps its threads, the code its version."""
    monkeypatch.setattr("kri_core.running.headers.code_version", lambda: "0.1.0 test")
    threads = torch.get_num_threads()

    def run(*arguments, out="out", task=TASK, stacks=(STACK,), cache=None):
        named = [text for stack in stacks for text in ("--stack", stack)]
        model = ("--model", bench / "model", "--cache", cache or bench / "cache")
        return kri("eval", "run", *task, *named, *model, "--out", tmp_path / out, *arguments)

    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def records(tmp_path):
    """Every record of a folder by (stack, probe set)."""

    def read(out="out"):
        found = [Lines.read(path) for path in sorted((tmp_path / out).glob("*.jsonl"))]
        return {lines.row: lines for lines in found}

    return read


@pytest.fixture(scope="session")
def finished(bench, tmp_path_factory, request):
    """Where the first whole run of the session is kept, to be copied."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def whole_run(evaluate, finished, tmp_path):
    """A finished run with three seeds in `out`; run once in a session."""
    kept = finished / "out"
    if not kept.exists():
        done = evaluate("--seeds", 3)
        assert done.code == 0, done.err
        shutil.copytree(tmp_path / "out", kept)
    else:
        shutil.copytree(kept, tmp_path / "out")
    return tmp_path / "out"
