"""A reader never sees one file's header over another file's KV."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

from kri_core.artifacts import read_cartridge, torch_file, verify_cartridge, write_cartridge
from kri_core.errors import ArtifactError

SWAPPER = textwrap.dedent("""
    import itertools, os, sys, time
    path, one, two, stage = sys.argv[1:]
    for source in itertools.cycle((one, two)):
        os.link(source, stage)
        os.replace(stage, path)
        print(flush=True)
        time.sleep(0.002)
""")


def test_a_file_that_keeps_changing_is_always_read_whole(make_cartridge, tmp_path, suffix):
    """Two cartridges of one size take turns under one name; both turn up, never a mixture."""
    cartridges = [make_cartridge(seed=seed, cart_id="a") for seed in (0, 1)]
    files = [tmp_path / f"{seed}{suffix}" for seed in (0, 1)]
    for cartridge, file in zip(cartridges, files, strict=True):
        write_cartridge(cartridge, file)
    path = tmp_path / f"a{suffix}"
    shutil.copy(files[0], path)

    with subprocess.Popen(
        [sys.executable, "-c", SWAPPER, path, *files, tmp_path / "stage"], stdout=subprocess.PIPE
    ) as swapper:
        swapper.stdout.readline()
        try:
            seen = [verify_cartridge(path).sha256 for _ in range(300)]
        finally:
            swapper.kill()

    assert set(seen) == {cartridge.sha256 for cartridge in cartridges}


def test_a_mapped_cartridge_outlives_its_file(make_cartridge, tmp_path, suffix):
    old, new = make_cartridge(seed=0), make_cartridge(seed=1)
    write_cartridge(old, tmp_path / f"a{suffix}")
    read = read_cartridge(tmp_path / f"a{suffix}")

    write_cartridge(new, tmp_path / f"a{suffix}")

    assert torch.equal(read.kv, old.kv)
    assert torch.equal(read_cartridge(tmp_path / f"a{suffix}").kv, new.kv)
    (tmp_path / f"a{suffix}").unlink()
    assert torch.equal(read.tail, old.tail)


@pytest.fixture
def swapped(make_cartridge, tmp_path, monkeypatch):
    """Torch reads the pickle of a.pt; then another file of that name is there to be mapped."""
    write_cartridge(make_cartridge(seed=0), tmp_path / "a.pt")
    write_cartridge(make_cartridge(seed=1, trained=True), tmp_path / "b.pt")
    real = torch.UntypedStorage.from_file

    def from_file(*args):
        shutil.copy(tmp_path / "b.pt", tmp_path / "stage")
        (tmp_path / "stage").replace(tmp_path / "a.pt")
        return real(*args)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", from_file)
    return tmp_path / "a.pt"


@pytest.fixture
def no_descriptor_names(tmp_path, monkeypatch):
    """A system without /dev/fd: torch has to be given the file's own name."""
    monkeypatch.setattr(torch_file, "DESCRIPTORS", tmp_path / "nowhere")


def test_a_torch_file_replaced_between_its_two_opens_is_still_one_file(swapped):
    if not torch_file.DESCRIPTORS.exists():
        pytest.skip("no /dev/fd here")

    assert not verify_cartridge(swapped).trained


def test_where_descriptors_have_no_names_it_is_one_line(swapped, no_descriptor_names):
    with pytest.raises(ArtifactError, match=r"a\.pt: was replaced while being opened; try again"):
        read_cartridge(swapped)


def test_torch_alone_would_mix_the_two(swapped, no_descriptor_names, monkeypatch):
    """The control: one file's header over the other's KV."""
    monkeypatch.setattr(torch_file, "file_state", lambda _: 0)

    with pytest.raises(ArtifactError, match="sha256 of its contents is"):
        verify_cartridge(swapped)


def test_without_descriptor_names_a_whole_file_is_read(
    make_cartridge, tmp_path, no_descriptor_names
):
    write_cartridge(make_cartridge(), tmp_path / "a.pt")

    assert verify_cartridge(tmp_path / "a.pt").sha256 == make_cartridge().sha256
