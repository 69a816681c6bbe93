"""`eval run --server` against a real server: what it records is what the hf substrate records."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.cli import main
from kri_core.evaluation.reading import read_record
from kri_core.running.server import Server
from kri_core.testing.tiny import save_tiny

OFFLINE = "A1R2K5(kri-d-kv-sum)"
ASKS = "A1R2K5(kri-q[source=layer0])"
REPAIRS = f"{OFFLINE}+xa25"
CLOSE = 1e-3  # of log-probabilities, in float32
TASK = ("--task", "needle8", "--set", "tokens=640", "--set", "needles=2", "--docs", "2")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A folder with model/, served/ (a cache) and the records of hf/."""
    import torch

    folder = tmp_path_factory.mktemp("bench")
    save_tiny(folder / "model", head_dim=32, hidden_size=64, max_position_embeddings=1024)
    threads = torch.get_num_threads()
    assert evaluated(folder, "hf") == 0
    yield folder
    torch.set_num_threads(threads)


def evaluated(folder, out, *arguments, stacks=(OFFLINE, ASKS, REPAIRS)):
    """The exit code of a run."""
    stacks = [text for stack in stacks for text in ("--stack", stack)]
    places = ("--model", folder / "model", "--cache", folder / "served", "--out", folder / out)
    command = ["kri-core", "eval", "run", *TASK, *stacks, *places, "--seeds", 2, *arguments]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as stop:
            main()
    return stop.value.code or 0


@pytest.fixture(scope="module")
def server(serve, bench):
    """The cache's cartridges and priors; the stack with a repair brings the worker for it."""
    cache = bench / "served"
    arguments = [bench / "model", "--cartridge", cache / "cartridges", "--prior", cache / "priors"]
    arguments += ["--stack", REPAIRS, "--cpu-kv-space=1", "--", "--dtype=float32"]
    arguments += ["--max-model-len=1024", "--enforce-eager"]
    with serve(arguments, bench) as running:
        yield running


@pytest.fixture(scope="module")
def found(bench, server):
    """Records of both runs by (stack, probe set)."""
    assert evaluated(bench, "vllm", "--server", server.url) == 0
    return SimpleNamespace(hf=records(bench / "hf"), vllm=records(bench / "vllm"))


def records(folder):
    read = [read_record(path) for path in folder.glob("*.jsonl")]
    return {(record.header.stack, record.header.probe_set): record for record in read}


ROWS = [
    ("full", None),
    ("floor", None),
    ("A1R2K5(random)", None),
    ("recency[budget=8]", None),
    (OFFLINE, "generic"),
    (OFFLINE, "domain"),
    (ASKS, None),
    (REPAIRS, "domain"),
]


@pytest.mark.parametrize("row", ROWS)
def test_every_item_comes_out_as_on_the_hf_substrate(found, row):
    served, here = found.vllm[row], found.hf[row]

    expected = {result.key: result for result in here.results}
    assert {result.key for result in served.results} == set(expected)
    for result in served.results:
        own = expected[result.key]
        assert (result.kept, result.kept_fraction) == (own.kept, own.kept_fraction)
        assert result.refreshed_tokens == own.refreshed_tokens
        for name in ("mc", "em"):
            assert result.scores[name] == own.scores[name]
        assert result.scores["logp"] == pytest.approx(own.scores["logp"], abs=CLOSE)
        assert result.scores["cover"] == own.scores["cover"]
        assert not {"kl", "nll"} & set(result.scores)


def test_a_header_says_what_the_server_is(found):
    header = found.vllm[OFFLINE, "domain"].header

    assert header.substrate.startswith("vllm 0.3")
    assert header.dtype == "float32"
    assert header.fingerprint == found.hf["full", None].header.fingerprint
    assert "one thread" not in header.machine


def test_what_names_blocks_is_left_out_and_not_taken_from_elsewhere(found):
    assert not [row for row in found.vllm if "oracle" in row[0]]


def test_a_server_that_is_not_told_the_question_chooses_by_the_answer_so_far(
    bench, server, monkeypatch, caplog
):
    """The negative control of `question_tokens`: without it items are refused, not recorded."""
    step = Server.step

    def untold(self, prompt, wanted, params, tokens):
        params.pop("question_tokens", None)
        return step(self, prompt, wanted, params, tokens)

    monkeypatch.setattr(Server, "step", untold)
    assert evaluated(bench, "untold", "--server", server.url, stacks=(ASKS,)) == 1
    assert re.search(r"answers to one item 5 were routed, in [2-5] ways", caplog.text)
    assert records(bench / "untold")[ASKS, None].missing
