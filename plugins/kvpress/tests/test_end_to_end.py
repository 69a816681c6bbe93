"""From the command line, on a tiny transformers model: bake by name, serve from the prior."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from attrs import evolve

from kri_core import ConfigError, EngineError, PluginError, parse
from kri_core.bake import bake
from kri_core.cli import main
from kri_core.registry import Registry
from kri_core.stack import Stack
from kri_core.testing import FakeModel, FakeProbe

pytest.importorskip("transformers")

from kri_core.artifacts import read_prior, write_cartridge
from kri_core.substrate.hf import HfProbe, load_model
from kri_core.testing.tiny import save_tiny, tiny, tiny_cartridge

INSTALLED = find_spec("kvpress") is not None
needs_kvpress = pytest.mark.skipif(
    not INSTALLED, reason="kvpress is not installed: .ci/run tests it on its own"
)


@pytest.fixture
def run(capsys, monkeypatch):
    """`kri-core ARGS` in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kri-core", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def document(tmp_path):
    """A model directory and a cartridge of 12 blocks of 8 that it made."""
    folder = save_tiny(tmp_path / "tiny")
    path = tmp_path / "doc.safetensors"
    write_cartridge(tiny_cartridge(load_model(str(folder)), 102, 8), path)
    return folder, path


@needs_kvpress
def test_two_presses_are_baked_and_one_is_served(run, document, tmp_path):
    folder, path = document
    code, out, err = run(
        *("bake", "--cartridge", path, "--model", folder, "--out", tmp_path / "priors"),
        *("--scorer", "kvpress:knorm", "--scorer", "kvpress:snapkv[pool=max]"),
    )
    assert code == 0, err
    knorm, snapkv = out.split()
    assert knorm.endswith("_kvpress-knorm.pt")
    assert snapkv.endswith("_kvpress-snapkv-pool-max.pt")
    meta = read_prior(Path(knorm)).meta
    assert (meta.algorithm, dict(meta.params)) == ("kvpress", {"press": "knorm"})

    stacks = ("A1R2K3", "A1R2K3(kvpress:knorm)", "A1R2K3(kvpress[press=knorm])")
    routed = [
        run("route", "--cartridge", path, "--prior", knorm, "--stack", stack, "--json")
        for stack in stacks
    ]
    assert [code for code, _, _ in routed] == [0, 0, 0]
    assert len({out for _, out, _ in routed}) == 1
    assert "A1R2K3(kvpress:knorm)" in routed[0][1]

    code, _, err = run("route", "--cartridge", path, "--prior", snapkv, "--stack", stacks[1])
    assert code == 4
    assert "names scorer kvpress:knorm, the prior was baked by kvpress:snapkv[pool=max]" in err


@pytest.mark.skipif(INSTALLED, reason="kvpress is installed")
def test_without_kvpress_a_bake_says_what_to_install_in_one_line(run, document, tmp_path):
    folder, path = document
    prior = tmp_path / "prior.pt"
    code, _, err = run(
        *("bake", "--cartridge", path, "--model", folder, "--out", prior),
        *("--scorer", "kvpress:knorm"),
    )

    assert code == 3
    assert "pip install 'kri-plugin-kvpress[kvpress]'" in err.splitlines()[-1]
    assert not prior.exists()


def test_it_is_listed_with_what_it_offers(run):
    code, out, _ = run("list-plugins", "--json")
    (row,) = (row for row in json.loads(out)["plugins"] if row["name"] == "kvpress")

    assert code == 0
    assert row["state"] == "ok"
    assert row["summary"] == (
        "Any scoring press of NVIDIA's kvpress as a scorer for kri-core: kvpress:<press>"
    )


def baked(cartridge, probe, scorer="kvpress:knorm"):
    stack = Stack.load(parse(f"whole({scorer})"), Registry.discover())
    return list(bake(cartridge, [stack.scorer], probe))


@needs_kvpress
def test_the_probe_answers_as_before_once_kvpress_is_imported():
    """It wraps every attention function of transformers, ours too."""
    model = tiny("Llama")
    cartridge = tiny_cartridge(model, 102, 8)
    probe = HfProbe(model, cartridge, (), 16)
    before = probe.forward([1, 2, 3], read=("logits",)).logits
    baked(cartridge, probe)

    assert probe.forward([1, 2, 3], read=("logits",)).logits.equal(before)


@needs_kvpress
def test_what_has_no_prefill_to_score_is_refused_by_name():
    model = tiny("Llama")
    cartridge = tiny_cartridge(model, 102, 8)
    probe = HfProbe(model, cartridge, (), 16)
    for changes, what in (({"trained": True}, "is trained"), ({"token_ids": ()}, "does not know")):
        with pytest.raises(ConfigError, match=f"'tiny' {what}.* no prefill for kvpress to score"):
            baked(evolve(cartridge, **changes), probe)


@needs_kvpress
def test_a_document_shorter_than_a_press_s_window_is_an_error_of_one_line():
    model = tiny("Llama")
    cartridge = tiny_cartridge(model, 50, 8)
    with pytest.raises(PluginError, match="50 should be greater than the window size 64"):
        baked(cartridge, HfProbe(model, cartridge, (), 16), "kvpress:snapkv")


@needs_kvpress
def test_another_substrate_s_model_is_refused_by_name():
    model = FakeModel.random()
    cartridge = model.cartridge(range(26))
    with pytest.raises(EngineError, match="scores transformers models; got a FakeModel"):
        baked(cartridge, FakeProbe(model, cartridge))
