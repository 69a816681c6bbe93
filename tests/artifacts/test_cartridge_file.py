"""Cartridges on disk: what is read is what was written, or one line says why not."""

from __future__ import annotations

import json

import attrs
import pytest
import safetensors
import safetensors.torch
import torch

from kri_core.artifacts import (
    read_cartridge,
    read_cartridge_header,
    seal,
    verify_cartridge,
    write_cartridge,
)
from kri_core.errors import ArtifactError


def rewrite(path, **changes):
    """The file again with header fields, tensors or other fields changed, as a stranger would."""
    held = dict(torch.load(path, weights_only=True))
    for name, value in changes.items():
        if name in held:
            held[name] = value
        elif value is None:
            held["header"] = json.dumps(
                {key: item for key, item in json.loads(held["header"]).items() if key != name}
            )
        else:
            held["header"] = json.dumps({**json.loads(held["header"]), name: value})
    torch.save(held, path)


@pytest.mark.parametrize("num_tokens", [3, 8, 11], ids=["tail only", "no tail", "both"])
def test_reads_what_was_written(make_cartridge, tmp_path, suffix, num_tokens):
    written = make_cartridge(num_tokens=num_tokens)
    write_cartridge(written, tmp_path / f"patient_00{suffix}")

    read = verify_cartridge(tmp_path / f"patient_00{suffix}")

    assert read.cart_id == "patient_00"
    assert torch.equal(read.kv, written.kv)
    assert torch.equal(read.tail, written.tail)
    fields = ("layout", "model", "token_ids", "trained", "sha256", "prefix_hash", "created_at")
    assert all(getattr(read, name) == getattr(written, name) for name in fields)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_kv_keeps_every_bit(model, tmp_path, suffix, dtype):
    """Every finite bit pattern there is, −0 and subnormals too, in a file that keeps its dtype."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    finite = patterns[patterns.isfinite()]
    finite = finite[: finite.numel() // 16 * 16]
    kv = finite.reshape(-1, 1, 2, 1, 4, 2)
    tail = torch.zeros(1, 2, 1, 0, 2, dtype=dtype)
    path = tmp_path / f"bits{suffix}"
    write_cartridge(seal("bits", 4, model, (), kv, tail), path)

    read = read_cartridge(path)

    assert read.kv.dtype == dtype
    assert torch.equal(read.kv.view(torch.int16), kv.view(torch.int16))


def test_both_formats_hold_the_same_payload(make_cartridge, tmp_path):
    for name in ("a.pt", "a.safetensors"):
        write_cartridge(make_cartridge(), tmp_path / name)

    one, two = (verify_cartridge(tmp_path / name) for name in ("a.pt", "a.safetensors"))

    assert (one.sha256, one.prefix_hash) == (two.sha256, two.prefix_hash)


def test_safetensors_library_reads_ours(make_cartridge, tmp_path):
    cartridge = make_cartridge(dtype=torch.bfloat16)
    write_cartridge(cartridge, tmp_path / "a.safetensors")

    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("kv"), cartridge.kv)
        assert torch.equal(file.get_tensor("tail"), cartridge.tail)
        assert file.get_tensor("token_ids").tolist() == list(cartridge.token_ids)
        assert json.loads(file.metadata()["header"])["dtype"] == "bfloat16"


def test_reads_what_the_safetensors_library_wrote(make_cartridge, tmp_path):
    cartridge = make_cartridge()
    write_cartridge(cartridge, tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        metadata, names = file.metadata(), ("kv", "tail", "token_ids")
        tensors = {name: file.get_tensor(name).clone() for name in names}
    safetensors.torch.save_file(tensors, tmp_path / "b.safetensors", metadata)

    assert torch.equal(verify_cartridge(tmp_path / "b.safetensors").kv, cartridge.kv)


def test_header_is_read_without_the_kv(make_cartridge, tmp_path, suffix):
    cartridge = make_cartridge(dtype=torch.bfloat16, trained=True)
    write_cartridge(cartridge, tmp_path / f"a{suffix}")

    header = read_cartridge_header(tmp_path / f"a{suffix}")

    assert (header.layout, header.model) == (cartridge.layout, cartridge.model)
    assert (header.dtype, header.trained, header.format_version) == ("bfloat16", True, 1)
    assert header.sha256 == cartridge.sha256
    assert (header.block_bytes, header.num_bytes) == (cartridge.kv[0].nbytes, cartridge.num_bytes)


@pytest.mark.parametrize("kv_heads", [1, 2, 8], ids=["multi-query", "grouped", "multi-head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_byte_counts_agree_with_the_file(make_cartridge, tmp_path, kv_heads, dtype):
    """A file is its KV, 8 bytes a token id, and a header."""
    cartridge = make_cartridge(num_tokens=11, kv_heads=kv_heads, dtype=dtype)
    path = tmp_path / "a.safetensors"
    write_cartridge(cartridge, path)
    raw = path.read_bytes()

    header_bytes = 8 + int.from_bytes(raw[:8], "little")
    assert len(raw) - header_bytes == cartridge.num_bytes + 8 * 11
    assert read_cartridge_header(path).num_bytes == cartridge.num_bytes


def test_kv_starts_on_a_page(make_cartridge, tmp_path):
    """Else every block read would touch a page of its neighbour's."""
    write_cartridge(make_cartridge(), tmp_path / "a.safetensors")
    raw = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")

    start = json.loads(raw[8 : 8 + length])["kv"]["data_offsets"][0]
    assert (8 + length + start) % 4096 == 0


def test_writing_to_a_read_cartridge_does_not_reach_the_file(make_cartridge, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write_cartridge(make_cartridge(), path)
    before = path.read_bytes()

    read_cartridge(path).kv.fill_(7.0)

    assert path.read_bytes() == before


def test_a_view_is_written_without_what_it_is_a_view_of(model, tmp_path, suffix):
    whole = torch.randn(100, 1, 2, 1, 4, 2)
    path = tmp_path / f"a{suffix}"
    write_cartridge(seal("a", 4, model, (), whole[:1], torch.zeros(1, 2, 1, 0, 2)), path)

    assert path.stat().st_size < whole.nbytes
    assert torch.equal(verify_cartridge(path).kv, whole[:1])


def test_one_flipped_byte_is_found_by_verify(make_cartridge, tmp_path, suffix):
    """Reading alone cannot tell: it does not look at the KV."""
    cartridge = make_cartridge()
    path = tmp_path / f"a{suffix}"
    write_cartridge(cartridge, path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(cartridge.kv[1].numpy().tobytes())] ^= 1
    path.write_bytes(raw)

    read_cartridge(path)
    with pytest.raises(ArtifactError, match=r"a\.\w+: sha256 of its contents is .*; build or copy"):
        verify_cartridge(path)


def test_changed_token_ids_are_found_by_verify(make_cartridge, tmp_path):
    write_cartridge(make_cartridge(), tmp_path / "a.pt")
    rewrite(tmp_path / "a.pt", token_ids=torch.arange(11))

    with pytest.raises(ArtifactError, match="sha256 of its contents is"):
        verify_cartridge(tmp_path / "a.pt")


@pytest.mark.parametrize("change", [{"trained": True}, {"prefix_hash": "0" * 64}])
def test_a_header_that_claims_another_prefix_is_found_by_verify(make_cartridge, tmp_path, change):
    write_cartridge(make_cartridge(), tmp_path / "a.pt")
    rewrite(tmp_path / "a.pt", **change)

    with pytest.raises(ArtifactError, match=r"prefix_hash of its contents is .*its header says"):
        verify_cartridge(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"format_version": 2}, "is of cartridge format 2, this kri-core reads up to 1; upgrade"),
        ({"dtype": None}, "header lacks dtype; it was written by something else"),
        ({"colour": "red"}, "header has unknown colour; it was written by something else"),
        ({"trained": 1}, "header.trained must be bool; got '1'; write it again"),
        ({"dtype": "int8"}, "header.dtype must be one of float32, .*; got int8"),
        ({"dtype": "float16"}, "kv is float32, its header says float16; build it again"),
        ({"sha256": "abc"}, "header.sha256 must be 64 hex digits; got 'abc'"),
        ({"created_at": "today"}, "header.created_at must be an ISO 8601 time; got 'today'"),
        ({"layout": 3}, "header.layout must be a mapping; got a int"),
        ({"header": "{"}, "has a header that is not JSON; build it again"),
        ({"header": 3}, "is not a kri-core cartridge: wanted a header, it holds header, kv"),
        ({"kv": torch.zeros(2, 2, 2, 2, 4, 9)}, r"Cartridge.kv must be .*got shape"),
        ({"kv": "zeros"}, "kv is a str, wanted a tensor; write it again"),
        ({"token_ids": torch.zeros(11)}, "token_ids is float32, its header says int64"),
        ({"token_ids": torch.arange(3)}, "Cartridge.token_ids must be one per token or none"),
    ],
)
def test_a_file_that_contradicts_itself_is_one_line(make_cartridge, tmp_path, changes, line):
    write_cartridge(make_cartridge(), tmp_path / "a.pt")
    rewrite(tmp_path / "a.pt", **changes)

    with pytest.raises(ArtifactError, match=rf"a\.pt: {line}") as caught:
        read_cartridge(tmp_path / "a.pt")
    assert "\n" not in str(caught.value)


def test_another_field_in_the_file_is_refused(make_cartridge, tmp_path):
    write_cartridge(make_cartridge(), tmp_path / "a.pt")
    held = torch.load(tmp_path / "a.pt", weights_only=True)
    torch.save({**held, "extra": torch.zeros(1)}, tmp_path / "a.pt")

    with pytest.raises(ArtifactError, match="has unknown fields extra; build it again"):
        read_cartridge(tmp_path / "a.pt")


def test_a_prior_given_as_a_cartridge_is_called_one(tmp_path):
    torch.save({"block_affinities": torch.zeros(1, 1, 4)}, tmp_path / "p.pt")

    for read in (read_cartridge, read_cartridge_header):
        with pytest.raises(ArtifactError, match=r"is a prior, not a cartridge; give the cartridge"):
            read(tmp_path / "p.pt")


def test_a_name_of_two_lines_gives_one_line(tmp_path):
    with pytest.raises(ArtifactError, match=r"/a\?\?\[2Jb\.pt: cannot be opened") as caught:
        read_cartridge(tmp_path / "a\n\x1b[2Jb.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.bin", "a", "a.pt.tmp"])
def test_another_suffix_is_refused_for_reading_and_writing(make_cartridge, tmp_path, name):
    line = r"has suffix '.*'; name it \.safetensors or \.pt"
    with pytest.raises(ArtifactError, match=line):
        write_cartridge(make_cartridge(), tmp_path / name)
    with pytest.raises(ArtifactError, match=line):
        read_cartridge(tmp_path / name)


def test_a_cartridge_without_known_tokens_round_trips(make_cartridge, tmp_path, suffix):
    unknown = attrs.evolve(make_cartridge(token_ids=()), cart_id="u")
    write_cartridge(unknown, tmp_path / f"u{suffix}")

    assert verify_cartridge(tmp_path / f"u{suffix}").token_ids == ()
