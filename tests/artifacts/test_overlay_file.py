"""Overlays on disk: what they hold, what they serve, and what is refused."""

import json

import pytest
import torch
from attrs import evolve
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kri_core.artifacts import (
    is_overlay,
    read_cartridge,
    read_overlay,
    seal_overlay,
    verify_overlay,
    write_cartridge,
    write_overlay,
)
from kri_core.errors import ArtifactError
from kri_core.types import Manifest, Split

KEPT = (0, 3, 5)


@pytest.fixture
def manifest(tiny_cartridge):
    return Manifest(
        kept=KEPT,
        total_blocks=6,
        split=Split.pin(6, anchor=1, recent=1, mid_budget=1),
        stack="A1R1K1(knorm)+xa25",
        cart_id="tiny",
        prefix_hash=tiny_cartridge.prefix_hash,
    )


@pytest.fixture
def overlay(tiny_cartridge, manifest):
    """The kept blocks of the cartridge, all numbers one larger."""
    kv, tail = tiny_cartridge.kv[list(KEPT)] + 1, tiny_cartridge.tail + 1
    return seal_overlay(tiny_cartridge, manifest, 7, kv, tail)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_it_comes_back_as_it_was_written(overlay, tiny_cartridge, tmp_path, suffix):
    path = tmp_path / f"o{suffix}"
    write_overlay(overlay, path)

    found = verify_overlay(path)
    assert found.header == overlay.header
    assert found.header.cartridge_sha256 == tiny_cartridge.sha256
    assert found.header.refreshed_tokens == 7
    assert torch.equal(found.tail, overlay.tail)
    assert list(found.kv) == list(KEPT)
    assert torch.equal(found.kv[3], tiny_cartridge.kv[3] + 1)


def test_blocks_that_are_not_kept_are_not_in_the_file(overlay, tiny_cartridge, tmp_path):
    write_overlay(overlay, tmp_path / "o.safetensors")
    with safe_open(tmp_path / "o.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["kv", "tail"]
        assert file.get_tensor("kv").shape == (3, *tiny_cartridge.kv.shape[1:])
    assert 1 not in overlay.kv


def test_it_serves_its_own_selection_alone(overlay, tiny_cartridge, manifest):
    assert overlay.serves(tiny_cartridge, manifest)
    assert not overlay.serves(tiny_cartridge, evolve(manifest, kept=(0, 2, 5)))
    assert not overlay.serves(tiny_cartridge, evolve(manifest, stack="A1R1K1(knorm)+xa15"))
    assert not overlay.serves(evolve(tiny_cartridge, sha256="0" * 64), manifest)


def test_its_digest_covers_what_is_said_of_the_kv(overlay, tiny_cartridge, manifest):
    parts = (7, overlay.blocks, overlay.tail)
    same = seal_overlay(tiny_cartridge, manifest, *parts)
    other = seal_overlay(tiny_cartridge, evolve(manifest, kept=(0, 2, 5)), *parts)
    changed = seal_overlay(tiny_cartridge, manifest, 7, overlay.blocks * 2, overlay.tail)

    assert same.header.sha256 == overlay.header.sha256
    assert len({overlay.header.sha256, other.header.sha256, changed.header.sha256}) == 3


def test_it_is_not_taken_for_a_cartridge_nor_a_cartridge_for_it(overlay, tiny_cartridge, tmp_path):
    write_overlay(overlay, tmp_path / "o.safetensors")
    write_cartridge(tiny_cartridge, tmp_path / "c.safetensors")

    assert is_overlay(tmp_path / "o.safetensors")
    assert not is_overlay(tmp_path / "c.safetensors")
    with pytest.raises(
        ArtifactError, match=r"o\.safetensors: is an overlay, not a cartridge; give"
    ):
        read_cartridge(tmp_path / "o.safetensors")
    with pytest.raises(ArtifactError, match="is not an overlay: it holds header, kv, tail, token_"):
        read_overlay(tmp_path / "c.safetensors")


def test_a_changed_byte_fails_verify(overlay, tmp_path):
    path = tmp_path / "o.safetensors"
    write_overlay(overlay, path)
    held = bytearray(path.read_bytes())
    held[-3] ^= 1
    path.write_bytes(held)

    with pytest.raises(ArtifactError, match="it was changed or damaged; bake or copy it again"):
        verify_overlay(path)


def test_kv_that_is_not_finite_is_refused(overlay, tiny_cartridge, manifest):
    bad = overlay.blocks.clone()
    bad[1, 0, 0, 0, 0, 0] = torch.nan
    with pytest.raises(ArtifactError, match="KV of block 1 holds NaN"):
        seal_overlay(tiny_cartridge, manifest, 7, bad, overlay.tail)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kept": [3, 0, 5]}, r"kept must be ascending blocks; got \(3, 0, 5\)"),
        ({"kept": [0, 3, 9]}, "keeps block 9 of a cartridge of 6; bake the overlay again"),
        ({"kept": [0, 3]}, r"kv is float32 \[3, .*its header says float32 \[2, "),
        ({"dtype": "int8"}, "overlay.dtype must be one of float32"),
        ({"dtype": "float16"}, "its header says float16"),
        ({"format_version": 2}, "is of overlay format 2, this kri-core reads up to 1; upgrade"),
        ({"who": "?"}, "overlay has unknown who"),
    ],
)
def test_a_header_that_says_something_else_is_refused(overlay, tmp_path, changes, said):
    path = tmp_path / "o.safetensors"
    write_overlay(overlay, path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["overlay"])
    save_file(load_file(path), path, {"overlay": json.dumps(header | changes)})

    with pytest.raises(ArtifactError, match=said):
        read_overlay(path)


def test_what_is_no_header_or_no_field_is_refused(overlay, tmp_path):
    path = tmp_path / "o.safetensors"
    tensors = {"kv": overlay.blocks.contiguous(), "tail": overlay.tail}
    save_file(tensors, path, {"overlay": "{"})
    with pytest.raises(ArtifactError, match="has a header that is not JSON; bake the overlay"):
        read_overlay(path)

    write_overlay(overlay, path)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    save_file({**tensors, "more": overlay.tail.clone()}, path, header)
    with pytest.raises(ArtifactError, match="has unknown fields more; bake the overlay again"):
        read_overlay(path)
