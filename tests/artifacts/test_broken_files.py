"""Files that are not whole, not regular, or not what their suffix says: one line each."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

from kri_core.artifacts import (
    read_cartridge,
    read_cartridge_header,
    read_foreign_cartridge,
    read_prior,
    write_cartridge,
    write_prior,
)
from kri_core.errors import ArtifactError
from kri_core.prior import Prior
from kri_core.types import BlockScores


def read_foreign(path):
    return read_foreign_cartridge(path, 4, None)


READERS = (read_cartridge, read_cartridge_header, read_prior, read_foreign)


@pytest.fixture(params=["cartridge", "prior"])
def whole(request, make_cartridge, tmp_path, suffix):
    """A file of some KiB that its reader accepts, and that reader."""
    path = tmp_path / f"whole{suffix}"
    if request.param == "cartridge":
        write_cartridge(make_cartridge(num_tokens=40), path)
        return path, read_cartridge
    write_prior(Prior(scores=BlockScores(torch.rand(4, 8, 64))), path)
    return path, read_prior


def one_line(reader, path, match):
    with pytest.raises(ArtifactError, match=match) as caught:
        reader(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_truncated_anywhere_is_one_line(whole):
    """At each KiB, just after the start, and one byte short."""
    path, reader = whole
    raw = path.read_bytes()
    reader(path)

    for length in (*range(1024, len(raw), 1024), 1, 4, 7, 8, 9, 30, len(raw) - 1):
        path.write_bytes(raw[:length])
        one_line(reader, path, r"(write or )?copy it again|a bare pickle is never loaded")


def test_a_header_alone_is_one_line(whole):
    path, reader = whole
    raw = path.read_bytes()
    header = 8 + int.from_bytes(raw[:8], "little") if path.suffix == ".safetensors" else 600
    path.write_bytes(raw[:header])

    one_line(reader, path, r"is cut short.*write or copy it again")


@pytest.mark.parametrize("extra", [b"\0", b"more bytes than a zip's end record has", b"PK\5\6"])
def test_trailing_bytes_are_one_line(whole, extra):
    path, reader = whole
    path.write_bytes(path.read_bytes() + extra)

    one_line(reader, path, r"has trailing bytes.*write or copy it again|is a damaged zip archive")


@pytest.mark.parametrize("reader", READERS)
def test_zero_bytes_are_one_line(tmp_path, suffix, reader):
    path = tmp_path / f"empty{suffix}"
    path.touch()

    one_line(reader, path, "has zero bytes; write or copy it again")


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_file_is_one_line(tmp_path, suffix, reader):
    path = tmp_path / f"missing{suffix}"

    one_line(reader, path, r"cannot be opened \(No such file or directory\); check the path")


def as_directory(path):
    path.mkdir()


def as_named_pipe(path):
    os.mkfifo(path)


def as_socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", [as_directory, as_named_pipe, as_socket])
def test_what_is_no_regular_file_is_one_line_without_waiting(tmp_path, suffix, reader, make):
    path = tmp_path / f"odd{suffix}"
    make(path)
    kind = make.__name__.removeprefix("as_").replace("_", " ")

    one_line(reader, path, f"is a {kind}, not a regular file; give the artifact's own path")


def test_a_device_is_one_line(tmp_path, suffix):
    path = tmp_path / f"zeros{suffix}"
    path.symlink_to("/dev/zero")

    one_line(read_cartridge, path, "is a device, not a regular file")


def test_no_read_permission_is_one_line(whole):
    path, reader = whole
    with tempfile.TemporaryDirectory() as folder:  # tmp_path's parents are closed to other users
        closed = Path(folder, path.name)
        closed.write_bytes(path.read_bytes())
        Path(folder).chmod(0o755)
        closed.chmod(0)
        with ordinary_user():
            one_line(reader, closed, r"cannot be opened \(Permission denied\); .*permissions")


@contextlib.contextmanager
def ordinary_user():
    """Root may read everything, so a root's test has to stop being root for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class Evil:
    """Unpickling this writes a file."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", ["everything", "block_affinities", "header", "trainable_keys"])
def test_a_pickle_that_would_run_code_never_runs(tmp_path, reader, place):
    witness, path = tmp_path / "witness", tmp_path / "evil.pt"
    evil = Evil(witness)
    torch.save(evil if place == "everything" else {place: evil}, path)

    one_line(
        reader,
        path,
        r"holds a pickle that could run code \(it asks for posix.mkdir\); it was not run, and to "
        r"convert it, torch.load\(weights_only=False\) it where nothing can be lost .* torch.save",
    )
    assert not witness.exists()
    torch.load(path, weights_only=False)  # the control: unpickled, it does run
    assert witness.exists()


@pytest.mark.parametrize("reader", READERS)
def test_a_bare_pickle_is_not_even_looked_at(tmp_path, reader):
    witness, path = tmp_path / "witness", tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Evil(witness)))

    one_line(reader, path, r"not a zip archive as torch.save writes.* a bare pickle is never load")
    assert not witness.exists()


def test_a_legacy_torch_file_is_one_line(tmp_path):
    path = tmp_path / "old.pt"
    torch.save(
        {"block_affinities": torch.zeros(1, 1, 4)}, path, _use_new_zipfile_serialization=False
    )

    one_line(read_prior, path, r"not a zip archive as torch.save writes \(torch 1.6 or later\)")


def test_parameter_list_is_allowed_in_foreign_cartridges_only(tmp_path):
    path = tmp_path / "p.pt"
    torch.save({"trainable_keys": torch.nn.ParameterList([torch.zeros(1)])}, path)

    one_line(read_cartridge, path, r"could run code \(it asks for torch.nn.*ParameterList\)")
    one_line(read_foreign, path, "lacks trainable_values")


def test_compressed_records_are_refused_not_mapped_as_they_are(tmp_path, make_cartridge):
    """Mapped, the compressed bytes would be taken for KV."""
    path = tmp_path / "a.pt"
    write_cartridge(make_cartridge(), path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)

    one_line(read_cartridge, path, "has compressed records, which cannot be mapped; torch.save")


def test_a_zip_that_is_no_torch_file_is_one_line(tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")

    one_line(read_cartridge, path, r"cannot be loaded \(.*\); write or copy it again")


def test_a_damaged_zip_directory_is_one_line(tmp_path, make_cartridge):
    path = tmp_path / "a.pt"
    write_cartridge(make_cartridge(), path)
    path.write_bytes(path.read_bytes().replace(b"PK\1\2", b"PK\0\0"))

    one_line(read_cartridge, path, r"is a damaged zip archive \(.*\); copy it again")


@pytest.mark.parametrize("value", [torch.zeros(3), [torch.zeros(3)], {3: torch.zeros(3)}])
def test_a_file_that_holds_no_names_is_one_line(tmp_path, value):
    torch.save(value, tmp_path / "a.pt")

    one_line(read_prior, tmp_path / "a.pt", r"holds a \w+, wanted a dict of names")


def packed(header, data=b""):
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (
            b"\xff" * 8 + b"{}",
            "is not a whole safetensors file .a header of 18446744073709551615",
        ),
        (packed(b"not json"), "has a header that is not safetensors' JSON"),
        (packed(b"[" * 100_000), "has a header that is not safetensors' JSON"),
        (packed(b"[]"), "has a header that is not safetensors' JSON"),
        (packed(b'{"a":{"dtype":"F4"}}'), "has a header that is not safetensors' JSON"),
        (
            packed(b'{"a":{"dtype":"I8","shape":[-1,-2],"data_offsets":[0,2]}}', b"ab"),
            "has a header that is not safetensors' JSON",
        ),
        (
            packed(b'{"a":{"dtype":"I8","shape":[2.0],"data_offsets":[0,2]}}', b"ab"),
            "has a header that is not safetensors' JSON",
        ),
        (
            packed(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}}', b"ab"),
            "has a header that is not safetensors' JSON",
        ),
        (
            packed(b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}', b"ab"),
            "places tensor 'a' at byte 62, wanted 61: tensors must follow each other without gaps",
        ),
    ],
)
def test_a_malformed_safetensors_header_is_one_line(tmp_path, raw, line):
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)

    one_line(read_cartridge, path, line)
