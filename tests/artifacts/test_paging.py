"""Prefetching is a hint: it never changes what is read, and never fails."""

from __future__ import annotations

import mmap

import torch

from kri_core import paging


def test_memory_that_is_no_file_is_left_alone():
    tensor = torch.arange(6.0)

    paging.prefetch([tensor, torch.empty(0), torch.empty(3, device="meta")])

    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]


def test_without_madvise_blocks_are_read_all_the_same(make_cartridge, monkeypatch):
    monkeypatch.setattr(paging, "_madvise", lambda: None)
    cartridge = make_cartridge()

    assert torch.equal(cartridge.keys([1]), cartridge.keys()[:, :, 4:])


def test_every_page_is_asked_for_once_in_pieces_the_kernel_takes(monkeypatch):
    """Linux drops what exceeds its readahead window in one call."""
    calls = []
    monkeypatch.setattr(paging, "_madvise", lambda: lambda *call: calls.append(call))
    tensor = torch.empty(300 * 1024, dtype=torch.uint8)

    paging.prefetch([tensor])

    starts, sizes = [call[0] for call in calls], [call[1] for call in calls]
    assert starts[0] == tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    assert starts[1:] == [start + size for start, size in zip(starts, sizes, strict=True)][:-1]
    assert starts[-1] + sizes[-1] == tensor.data_ptr() + tensor.nbytes
    assert max(sizes) <= 128 * 1024
