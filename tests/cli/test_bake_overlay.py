"""`bake-overlay`: a file of one selection's repaired KV."""

import json
from pathlib import Path

import pytest

from kri_core.artifacts import read_cartridge, read_overlay
from kri_core.substrate.vllm.settings import Settings

STACK = "A1R2K4+xa25"
PRIOR = "priors/doc_kri-d.pt"


@pytest.fixture
def bake(kri, here, tmp_path):
    def run(stack=STACK, out=tmp_path / "o.safetensors"):
        cartridge = ("--cartridge", "doc.safetensors", "--model", "model", "--prior", PRIOR)
        return kri("bake-overlay", *cartridge, "--stack", stack, "--out", out)

    return run


def test_it_keeps_the_selection_that_route_shows(bake, kri, tmp_path):
    done = bake()
    route = ("--cartridge", "doc.safetensors", "--prior", PRIOR, "--stack", STACK, "--json")
    shown = kri("route", *route).json

    assert (done.code, done.out) == (0, f"{tmp_path / 'o.safetensors'}\n"), done.err
    header = read_overlay(tmp_path / "o.safetensors").header
    assert header.kept == tuple(shown["selected_blocks"])
    assert header.stack == shown["stack"] == "A1R2K4(kri-d)+xa25"
    assert header.cartridge_sha256 == read_cartridge(Path("doc.safetensors")).sha256
    assert header.refreshed_tokens == 32  # a quarter of 7 blocks of 16 and a tail of 13
    assert "xa25: 32 of 125 tokens refreshed" in done.err


def test_verify_reads_it_whole(bake, kri, tmp_path):
    path = tmp_path / "o.safetensors"
    bake()
    assert ": ok, A1R2K4(kri-d)+xa25, sha256 " in kri("cartridge", "verify", path).out
    assert kri("cartridge", "verify", path, "--json").json["verified"] is True

    held = bytearray(path.read_bytes())
    held[-3] ^= 1
    path.write_bytes(held)
    assert kri("cartridge", "verify", path).code == 4


def test_what_has_no_overlay_is_refused_before_the_work(bake, tmp_path):
    for stack, said in {
        "A1R2K4": "repairs nothing",
        f"{STACK}[reference=query_first]": "computes KV after the question",
    }.items():
        done = bake(stack)
        assert done.code == 2
        assert said in done.err
    assert bake(out=tmp_path / "o.txt").code == 4
    assert not list(tmp_path.glob("o.*"))


def settings(done):
    """What `config` printed, as a server reads it."""
    assert done.code == 0, done.err
    return Settings.parse(json.loads(done.out)["kv_connector_extra_config"])


def test_a_server_is_given_overlays_by_cartridge(kri, here):
    given = ("--cartridge", "doc=doc.safetensors", "--overlay", "doc=a.pt", "--overlay", "doc=b.pt")
    (entry,) = settings(kri("config", *given, "--stack", STACK)).cartridges
    assert entry.overlays == (here / "a.pt", here / "b.pt")

    done = kri("config", *given[:2], "--overlay", "a.pt")
    assert done.code == 2
    assert "--overlay 'a.pt' is no ID=PATH; name the cartridge it is of" in done.err


def test_an_overlay_beside_cartridges_is_not_one_of_them(bake, kri, tmp_path):
    bake()
    (tmp_path / "doc.safetensors").write_bytes(Path("doc.safetensors").read_bytes())

    found = settings(kri("config", "--cartridge", tmp_path)).cartridges
    assert [entry.cart_id for entry in found] == ["doc"]
