"""Writing: whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from kri_core.artifacts import check_target, read_cartridge, verify_cartridge, write_cartridge
from kri_core.artifacts.atomic import replacing
from kri_core.errors import ArtifactError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path):
    with replacing(tmp_path / "a.pt") as file:
        file.write(b"new")
        assert not (tmp_path / "a.pt").exists()

    assert names(tmp_path) == ["a.pt"]
    assert (tmp_path / "a.pt").read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_other(tmp_path, error):
    (tmp_path / "a.pt").write_bytes(b"old")

    def fail():
        with replacing(tmp_path / "a.pt") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()

    assert names(tmp_path) == ["a.pt"]
    assert (tmp_path / "a.pt").read_bytes() == b"old"


def test_it_is_synced_before_it_takes_the_name(tmp_path, monkeypatch):
    """Else a power cut could leave the name on an empty file."""
    steps = []
    real_sync, real_rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("sync"), real_sync(fd)))
    monkeypatch.setattr(os, "replace", lambda *a: (steps.append("rename"), real_rename(*a)))

    with replacing(tmp_path / "a.pt") as file:
        file.write(b"new")

    assert steps == ["sync", "rename", "sync"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a.pt") as file:
            file.write(b"new")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a.pt").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a.pt").symlink_to(tmp_path / "disk" / "a.pt")

    with replacing(tmp_path / "a.pt") as file:
        file.write(b"new")

    assert (tmp_path / "a.pt").is_symlink()
    assert (tmp_path / "disk" / "a.pt").read_bytes() == b"new"


def test_a_folder_that_is_not_there_is_one_line(make_cartridge, tmp_path, suffix):
    line = r"cannot be written \(No such file or directory\); free space or choose a place"
    with pytest.raises(ArtifactError, match=line):
        write_cartridge(make_cartridge(), tmp_path / "nowhere" / f"a{suffix}")


def test_a_name_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    check_target(tmp_path / "a.pt")
    with pytest.raises(ArtifactError, match=r"a\.bin: has suffix '\.bin'; name it"):
        check_target(tmp_path / "a.bin")
    with pytest.raises(ArtifactError, match=r"there is no folder .*nowhere; make it"):
        check_target(tmp_path / "nowhere" / "a.pt")


def test_a_folder_that_is_read_only_is_refused_before_the_work(tmp_path, monkeypatch):
    """Root may write everywhere, so the kernel's answer is given for it."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ArtifactError, match=r"the folder .* is read-only; choose another"):
        check_target(tmp_path / "a.pt")


@pytest.mark.parametrize("place", [check_target, lambda path: replacing(path).__enter__()])
def test_a_pipe_is_neither_replaced_nor_waited_for(tmp_path, place):
    """A rename over a pipe or a device such as /dev/null would destroy it."""
    os.mkfifo(tmp_path / "a.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "a.pt")

    for name in ("a.pt", "link.pt"):
        with pytest.raises(ArtifactError, match="it is no regular file; give another name"):
            place(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "a.pt").stat().st_mode)
    assert names(tmp_path) == ["a.pt", "link.pt"]


def test_a_loop_of_links_is_one_line(tmp_path):
    (tmp_path / "a.pt").symlink_to(tmp_path / "a.pt")
    with pytest.raises(ArtifactError, match=r"cannot be written \(Too many levels"):
        check_target(tmp_path / "a.pt")


def test_a_folder_of_that_name_is_one_line(make_cartridge, tmp_path, suffix):
    (tmp_path / f"a{suffix}").mkdir()

    with pytest.raises(ArtifactError, match="it is a folder; give another name"):
        write_cartridge(make_cartridge(), tmp_path / f"a{suffix}")
    assert names(tmp_path) == [f"a{suffix}"]


@pytest.mark.parametrize("limit", [100, 6000])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(make_cartridge, tmp_path, suffix, limit):
    """A limit on the file's size stands in for the disk: the kernel refuses the same write."""
    path = tmp_path / f"a{suffix}"
    old = make_cartridge()
    write_cartridge(old, path)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(ArtifactError, match=r"cannot be written \(File too large\)") as caught:
            write_cartridge(make_cartridge(num_tokens=400, seed=1), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    assert "\n" not in str(caught.value)
    assert names(tmp_path) == [path.name]
    assert verify_cartridge(path).sha256 == old.sha256


WRITER = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    import torch
    from kri_core.artifacts import seal, write_cartridge
    from kri_core.identity import ModelIdentity

    path, when = Path(sys.argv[1]), sys.argv[2]
    def stop(*_):
        print("here", flush=True)
        sys.stdin.read()
    if when == "before the rename":
        os.fsync = stop
    kv, tail = torch.ones(64, 4, 2, 2, 16, 32), torch.ones(4, 2, 2, 0, 32)
    cartridge = seal("a", 16, ModelIdentity("m"), (), kv, tail)
    if when == "any time":
        print("here", flush=True)
    while True:
        write_cartridge(cartridge, path)
""")


def killed_writer(path, when, seconds=0.0):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"here\n"
        time.sleep(seconds)
        child.kill()


def listed(folder):
    return [path.name for path in folder.iterdir() if path.suffix in (".pt", ".safetensors")]


def test_killed_before_the_rename_leaves_nothing_that_loads(tmp_path, suffix):
    """Every byte is written by then, so this is the fullest a half-written file can be."""
    killed_writer(tmp_path / f"a{suffix}", "before the rename")

    assert listed(tmp_path) == []
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size > 2**20  # the control: the writer had got that far
    with pytest.raises(ArtifactError, match=r"has suffix '\.tmp'"):
        read_cartridge(left)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05])
def test_killed_at_any_time_leaves_a_whole_file_or_none(tmp_path, suffix, seconds):
    path = tmp_path / f"a{suffix}"
    killed_writer(path, "any time", seconds)

    if listed(tmp_path):
        assert bool((verify_cartridge(path).kv == 1).all())
