"""`cartridge build/inspect/verify/convert`."""

import json
import shutil

import pytest
import torch

from kri_core.artifacts import read_cartridge

BUILD = ("cartridge", "build", "--model", "model", "--text")


def test_inspect_shows_the_header(kri, here):
    """<s> and 348 bytes; 3 layers, 2 KV heads of 8, float32."""
    shown = kri("cartridge", "inspect", "doc.safetensors", "--json").json

    assert shown["schema_version"] == 1
    assert (shown["num_tokens"], shown["num_blocks"], shown["tail_tokens"]) == (349, 21, 13)
    assert shown["kv_bytes"] == 349 * 3 * 2 * 2 * 8 * 4
    assert shown["block_bytes"] == 16 * 3 * 2 * 2 * 8 * 4
    assert shown["dtype"] == "float32"
    assert shown["model"]["model_id"] == str(here / "model")


def test_inspect_and_verify_are_readable_without_json(kri, here):
    inspected = kri("cartridge", "inspect", "doc.safetensors")
    verified = kri("cartridge", "verify", "doc.safetensors")

    assert "num_blocks" in inspected.out
    assert "doc.safetensors: ok" in verified.out


def test_the_first_special_token_is_kept_and_max_tokens_cuts(kri, here, tmp_path):
    done = kri(*BUILD, "doc.txt", "--out", tmp_path / "cut.pt", "--max-tokens", "20")

    assert done.code == 0
    assert read_cartridge(tmp_path / "cut.pt").token_ids[0] == 256  # <s>
    assert read_cartridge(tmp_path / "cut.pt").layout.num_tokens == 20


def test_standard_input_is_a_document(kri, here, tmp_path, monkeypatch):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nine bar")))
    done = kri(*BUILD, "-", "--out", tmp_path / "piped.safetensors", "--block-size", "4")

    assert done.code == 0
    assert read_cartridge(tmp_path / "piped.safetensors").layout.num_tokens == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give a document"),
        (b" \n", "is empty; give a document"),
        (b"caf\xe9", "is not UTF-8 (byte 3)"),
        (b"x" * 600, "has 601 tokens, but"),
    ],
)
def test_a_bad_document_is_refused(kri, here, tmp_path, content, message):
    (tmp_path / "bad.txt").write_bytes(content)

    done = kri(*BUILD, tmp_path / "bad.txt", "--out", tmp_path / "x.safetensors")

    assert (done.code, message in done.err) == (2, True), done.err
    assert not (tmp_path / "x.safetensors").exists()


def test_a_wrong_suffix_is_refused_before_the_prefill(kri, here):
    done = kri(*BUILD, "doc.txt", "--out", "doc.bin")

    assert (done.code, "has suffix '.bin'; name it .safetensors or .pt" in done.err) == (4, True)


def test_convert_keeps_content_and_identity(kri, here, tmp_path):
    assert kri("cartridge", "convert", "doc.safetensors", tmp_path / "doc.pt").code == 0

    one = kri("cartridge", "inspect", "doc.safetensors", "--json").json
    other = kri("cartridge", "inspect", tmp_path / "doc.pt", "--json").json
    for name in ("sha256", "prefix_hash", "kv_bytes", "model"):
        assert one[name] == other[name]


def test_a_foreign_cartridge_is_imported_and_answers(kri, here, tmp_path):
    """A list of (k, v), each [1, kv_head, token, head_dim], with its token ids beside it."""
    ours = read_cartridge(here / "doc.safetensors")
    sides = (
        torch.cat([side, ours.tail[:, which]], 2)
        for which, side in enumerate((ours.keys(), ours.values()))
    )
    torch.save([(k[None], v[None]) for k, v in zip(*sides, strict=True)], tmp_path / "list.pt")
    (tmp_path / "prefix_token_ids.json").write_text(json.dumps(ours.token_ids))
    target = tmp_path / "doc.safetensors"

    bare = kri("cartridge", "convert", tmp_path / "list.pt", target)
    assert (bare.code, "records neither block size nor model" in bare.err) == (2, True)
    done = kri("cartridge", "convert", tmp_path / "list.pt", target, "--block-size", "16",
               "--model", "model")  # fmt: skip
    assert done.code == 0, done.err
    asked = ("--stack", "recency[budget=3]", "--json", "--max-new-tokens", "4")
    imported = kri("ask", "how?", "--cartridge", target, *asked).json
    original = kri("ask", "how?", "--cartridge", "doc.safetensors", *asked).json
    assert imported["token_ids"] == original["token_ids"]


def test_a_pickle_that_would_run_code_never_runs(kri, here, tmp_path):
    """CASE 16: in any command."""
    trap = tmp_path / "trap.pt"

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"kv": Trap()}, trap)
    for command in (
        ("cartridge", "inspect", trap),
        ("cartridge", "verify", trap),
        ("cartridge", "convert", trap, tmp_path / "x.pt", "--block-size", "4", "--model", "model"),
        ("prior", "inspect", trap),
        ("prior", "verify", trap),
        ("prior", "convert", trap, tmp_path / "x.pt"),
        ("bake", "--cartridge", trap, "--scorer", "random", "--out", tmp_path / "p.pt"),
        ("route", "--cartridge", trap, "--stack", "whole"),
        ("route", "--cartridge", "doc.safetensors", "--prior", trap, "--stack", "A1R1K1"),
        ("ask", "x", "--cartridge", trap, "--stack", "whole"),
    ):
        done = kri(*command)
        assert done.code == 4, (command, done.err)
        assert done.err.count("\n") == 1, done.err
    assert not (tmp_path / "sprung").exists()


def test_another_model_is_refused_by_the_field_that_differs(kri, here, tmp_path):
    """CASE 20."""
    from kri_core.testing.tiny import save_tiny

    save_tiny(tmp_path / "other", rope_theta=77.0)
    done = kri("ask", "x", "--cartridge", "doc.safetensors", "--stack", "whole", "--model",
               tmp_path / "other")  # fmt: skip

    assert (done.code, "was made with rope" in done.err) == (4, True), done.err


def test_one_changed_byte_fails_verify(kri, here, tmp_path):
    copy = tmp_path / "doc.safetensors"
    shutil.copy("doc.safetensors", copy)
    data = bytearray(copy.read_bytes())
    data[-5] ^= 1
    copy.write_bytes(data)

    assert kri("cartridge", "verify", copy).code == 4
    assert kri("cartridge", "verify", "doc.safetensors").code == 0


@pytest.mark.parametrize("size", ["0", str(2**31), "9" * 30])
def test_a_block_size_no_tensor_can_have_is_usage(kri, here, tmp_path, size):
    build = ("cartridge", "build", "--model", "model", "--text", "doc.txt", "--block-size", size)
    done = kri(*build, "--out", tmp_path / "a.pt")

    assert (done.code, f"{size} is not in the range 1<=x<=2147483647" in done.err) == (2, True)


def test_a_block_larger_than_any_document_is_all_tail(kri, here, tmp_path):
    build = (
        "cartridge",
        "build",
        "--model",
        "model",
        "--text",
        "doc.txt",
        "--block-size",
        2**31 - 1,
    )

    assert kri(*build, "--out", tmp_path / "a.pt").code == 0
    assert kri("cartridge", "verify", tmp_path / "a.pt", "--json").json["num_blocks"] == 0
