"""Reading is by block: 16 of 128 blocks are an eighth of the bytes, as the kernel counts them."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

import pytest
import torch

from kri_core.artifacts import (
    read_cartridge,
    read_cartridge_header,
    seal,
    verify_cartridge,
    write_cartridge,
)

if sys.platform != "linux":
    pytest.skip("counts in /proc, which only Linux has", allow_module_level=True)

NUM_BLOCKS = 128


@pytest.fixture
def path(model, tmp_path, suffix):
    """128 blocks of 256 KiB."""
    kv = torch.ones(NUM_BLOCKS, 8, 2, 4, 16, 64)
    tail = torch.ones(8, 2, 4, 3, 64)
    write_cartridge(seal("a", 16, model, range(2051), kv, tail), tmp_path / f"a{suffix}")
    return tmp_path / f"a{suffix}"


def bytes_from_disk(path, work):
    """What the kernel fetched from the disk for a call, the file not being in memory before."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = fetched()
    work()
    return fetched() - before


def fetched():
    return int(re.search(r"(?m)^read_bytes: (\d+)", Path("/proc/self/io").read_text())[1])


def read_blocks(path, blocks):
    cartridge = read_cartridge(path)
    cartridge.keys(blocks)
    cartridge.values(blocks)
    assert int(cartridge.tail.sum()) == cartridge.tail.numel()


@pytest.fixture
def on_disk(path):
    """The file, if memory is not all that holds it, and the bytes of all its blocks."""
    num_bytes = read_cartridge_header(path).num_bytes
    if bytes_from_disk(path, path.read_bytes) < num_bytes:
        pytest.skip("the temporary folder is in memory: there is no disk to count reads from")
    return path, num_bytes


@pytest.mark.parametrize(
    "blocks",
    [range(3, NUM_BLOCKS, 8), range(40, 56), (0, *range(113, NUM_BLOCKS))],
    ids=["scattered", "in a row", "head and tail"],
)
def test_sixteen_of_128_blocks_are_an_eighth_of_the_bytes(on_disk, blocks):
    path, num_bytes = on_disk
    assert len(blocks) == 16

    read = bytes_from_disk(path, lambda: read_blocks(path, blocks))

    assert 1.0 <= read / (num_bytes / 8) < 1.1  # tail, token ids, header: the rest


def test_all_blocks_are_all_of_the_bytes(on_disk):
    """The control: the count does see what is read."""
    path, num_bytes = on_disk

    assert bytes_from_disk(path, lambda: read_blocks(path, None)) >= num_bytes


def test_opening_reads_no_block(on_disk):
    """Neither does the header alone; the tail is fetched, as every request attends to it."""
    path, num_bytes = on_disk

    assert bytes_from_disk(path, lambda: read_cartridge(path)) < num_bytes / 128
    assert bytes_from_disk(path, lambda: read_cartridge_header(path)) < num_bytes / 128


def peak_private_bytes(work):
    """The most private memory a call holds at once, beyond what was held before."""

    def held():
        return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

    before, seen, done = held(), [0], threading.Event()

    def watch():
        while not done.is_set():
            seen.append(held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()
        seen.append(held())
        del result
    finally:
        done.set()
        watcher.join()
    return max(seen) - before


@pytest.mark.parametrize("target", ["b.pt", "b.safetensors"])
def test_verifying_and_writing_hold_no_copy_of_the_kv(path, tmp_path, target):
    """32 MiB on disk, under 8 MiB of private memory; the control over 16."""
    cartridge = read_cartridge(path)

    assert peak_private_bytes(lambda: verify_cartridge(path)) < 2**23
    assert peak_private_bytes(lambda: write_cartridge(cartridge, tmp_path / target)) < 2**23
    assert peak_private_bytes(cartridge.kv.clone) >= 2**24
