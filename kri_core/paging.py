"""Fetching the pages of a mapped tensor that will be read, and no others.

Left alone, the kernel reads far around the first page that is touched: on a disk with a large
readahead window (8 MiB is common in the cloud), all of a 32 MiB cartridge for an eighth of its
blocks. Pages that were asked for are there when they are touched, so nothing is read around them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 128 * 1024  # Linux asks for no more than the readahead window per call; this is its default


def prefetch(tensors: Iterable[Tensor]) -> None:
    """Start reading contiguous tensors; returns at once. In other memory it does nothing."""
    advise = _madvise()
    if advise is None:
        return
    for tensor in tensors:
        if tensor.device.type == "cpu":
            start = tensor.data_ptr()
            stop = start + tensor.nbytes
            for chunk in range(start - start % mmap.PAGESIZE, stop, CHUNK):
                advise(chunk, min(CHUNK, stop - chunk), mmap.MADV_WILLNEED)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The C library's madvise; None where there is none (Windows)."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found
