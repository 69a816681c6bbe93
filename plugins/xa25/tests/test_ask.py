"""`kri-core ask` with a repair: what it reports, refuses, and says when nothing was done."""

import json
import math
import sys

import pytest
import torch

pytest.importorskip("transformers")

from kri_core import Router, parse
from kri_core.cli import main
from kri_core.testing.tiny import save_tiny

DOCUMENT = "The pump is set to nine bar. " * 6  # with <s> 175 tokens: 10 blocks and a tail of 15
KEPT = 4 * 16 + 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repair")
    save_tiny(folder / "model")
    (folder / "doc.txt").write_text(DOCUMENT)
    return folder


@pytest.fixture
def kri(folder, capsys, monkeypatch):
    """Run kri-core in this process and in that folder: exit code, stdout, stderr."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kri-core", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code or 0, *capsys.readouterr())

    if not (folder / "doc.safetensors").exists():
        build = ("cartridge", "build", "--model", "model", "--text", "doc.txt")
        assert run(*build, "--out", "doc.safetensors")[0] == 0
    return run


def ask(kri, stack):
    arguments = ("--cartridge", "doc.safetensors", "--max-new-tokens", "2", "--json")
    code, out, err = kri("ask", "\nHow many bar?", "--stack", stack, *arguments)
    assert code == 0, err
    return json.loads(out), err


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("A1R2K13(kri-d)+xa25", "A1R2K13(kri-d)+xa25"),
        ("a1r2k13+XA25", "A1R2K13+xa25"),
        ("A1R2K13+cacheblend[ratio=0.25,mode=single]", "A1R2K13+xa"),
        ("A1R2K13+xa15[check_layer=2]+xa[ratio=0.5]", "A1R2K13+xa15[check_layer=2]+xa[ratio=0.5]"),
    ],
)
def test_stacks_with_a_repair_are_canonical(text, canonical):
    config = parse(text)
    if config.scorer is not None:
        pytest.importorskip("kri_plugin_d")
    assert str(Router.from_config(config).stack.config) == canonical
    assert parse(canonical) == parse(str(parse(canonical)))


def test_json_says_what_was_refreshed(kri, caplog):
    plain, _ = ask(kri, "A1R3K0")
    answer, _ = ask(kri, "A1R3K0+xa25")
    repair = answer["repair"]

    assert plain["repair"] is None
    assert answer["stack"].endswith("+xa25")
    assert repair["kept_tokens"] == KEPT
    assert repair["refreshed"] == math.ceil(KEPT / 4)
    assert 0 < repair["deviation_mean"] < repair["deviation_max"]
    assert repair["deviation_sum"] == pytest.approx(KEPT * repair["deviation_mean"])
    assert 0.25 < repair["share_captured"] < 1
    assert repair["reference"] == "routed"
    assert answer["logprobs"] != plain["logprobs"]
    assert answer["kv_bytes"] == plain["kv_bytes"]
    assert caplog.text == ""


def test_the_same_twice_is_the_same(kri):
    one, other = (ask(kri, "A1R3K0+xa15")[0] for _ in range(2))
    for answer in (one, other):
        del answer["timings"], answer["repair"]["seconds"]
    assert one == other


def test_repairs_go_one_after_the_other(kri):
    """The second one measures what the first one left: its quarter is fresh already."""
    everything = "xa[ratio=1.0]"
    answer, _ = ask(kri, f"A1R3K0+{everything}+xa25")
    first, second = answer["repair"]

    assert (first["name"], second["name"]) == (everything, "xa25")
    assert first["share_captured"] == 1
    assert second["deviation_max"] < 1e-5 < first["deviation_max"]


def test_a_repair_that_refreshes_nothing_is_said(kri, caplog):
    """CASES 38: for ratio 0, and where nothing deviates."""
    plain, _ = ask(kri, "A1R3K0")
    answer, _ = ask(kri, "A1R3K0+xa[ratio=0]")
    assert answer["repair"]["refreshed"] == 0
    assert answer["token_ids"] == plain["token_ids"]
    assert answer["logprobs"] == plain["logprobs"]
    assert f"xa[ratio=0.0] refreshed none of {KEPT} tokens" in caplog.text

    answer, _ = ask(kri, "A1R3K0+xa25[reference=full]")
    assert answer["repair"]["deviation_max"] == 0
    assert answer["repair"]["refreshed"] == math.ceil(KEPT / 4)
    assert "xa25[reference=full] changed nothing: the KV is that of 'full'" in caplog.text
    assert answer["logprobs"] == plain["logprobs"]


def test_without_json_stderr_says_it(kri):
    code, out, err = kri(
        "ask", "How?", "--stack", "whole+xa25[reference=query_first]", "--cartridge",
        "doc.safetensors", "--max-new-tokens", "1",
    )  # fmt: skip
    assert code == 0
    assert "xa25[reference=query_first]: 44 of 175 tokens refreshed, " in err
    assert "refreshed" not in out


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("whole+xa25[check_layer=3]", "check_layer=3 is not a layer of"),
        ("whole+xa25[ratio=0.3]", "'xa25' has no parameter 'ratio'"),
        ("whole+xa[reference=fresh]", "xa's reference is one of routed, full, query_first"),
        ("whole+xa[ratio=2]", "'ratio' must be <= 1: 2.0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(kri, stack, message):
    code, out, err = kri("ask", "How?", "--stack", stack, "--cartridge", "doc.safetensors")

    assert (code, out) == (2, "")
    assert message in err


def test_a_foreign_cartridge_is_refused_before_a_model_is_loaded(kri, folder):
    """It does not know its tokens."""
    pair = [(torch.randn(1, 2, 32, 8), torch.randn(1, 2, 32, 8)) for _ in range(3)]
    torch.save(pair, folder / "foreign.pt")
    convert = ("cartridge", "convert", "foreign.pt", "f.safetensors", "--model", "model")
    code, _, err = kri(*convert, "--block-size", "16")
    assert code == 0, err
    stack = ("--stack", "whole+xa25", "--cartridge", "f.safetensors", "--model", "./gone")
    code, out, err = kri("ask", "How?", *stack)
    assert (code, out) == (2, "")
    assert "does not know its tokens, so nothing fresh can be computed for a repair" in err
