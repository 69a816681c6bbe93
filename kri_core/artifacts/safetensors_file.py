"""The safetensors format through one descriptor: mapped when read, streamed when written.

Not safetensors.safe_open: it opens the file twice by name, so that a file replaced in between would
give one file's header over the other's bytes; and save_file holds a second copy of what it writes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, BinaryIO

from attrs import frozen

from kri_core.artifacts.tensors import bytes_of, dtype_name
from kri_core.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER = 100_000_000  # the format's own limit
PAGE = 4096
DTYPES = {  # the format's name → torch's, and bytes per value
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
}
_CODES = {name: code for code, (name, _) in DTYPES.items()}
ITEM_BYTES = dict(DTYPES.values())


@frozen
class Entry:
    """Where one tensor's bytes are."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in the file
    stop: int


@frozen
class Index:
    """A file's header: its texts and where its tensors are."""

    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]


def read_index(file: BinaryIO) -> Index:
    """Parse the header and prove that the tensors fill the rest of the file exactly."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER, size - 8):
        raise ArtifactError(
            f"is not a whole safetensors file (a header of {length} bytes in a file of {size}); "
            "write or copy it again"
        )
    try:
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        entries = {name: _entry(item, 8 + length) for name, item in header.items()}
        texts = {str(name): str(text) for name, text in metadata.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            "has a header that is not safetensors' JSON; write or copy it again"
        ) from error
    _check_filled(entries, 8 + length, size)
    return Index(texts, entries)


def _entry(item: Mapping[str, Any], data_start: int) -> Entry:
    """Raises ValueError and its like on anything but the format's own form."""
    dtype, item_bytes = DTYPES[item["dtype"]]
    shape = tuple(map(index, item["shape"]))
    start, stop = map(index, item["data_offsets"])
    if min(shape, default=0) < 0 or stop - start != math.prod(shape) * item_bytes:
        raise ValueError(item)
    return Entry(dtype, shape, data_start + start, data_start + stop)


def _check_filled(entries: Mapping[str, Entry], data_start: int, size: int) -> None:
    end = data_start
    for name, entry in sorted(entries.items(), key=lambda named: (named[1].start, named[1].stop)):
        if entry.start != end:
            raise ArtifactError(
                f"places tensor {name!r} at byte {entry.start}, wanted {end}: tensors must follow "
                "each other without gaps; write it again"
            )
        end = entry.stop
    if end != size:
        fault = "is cut short" if size < end else "has trailing bytes"
        raise ArtifactError(f"{fault}: {size} bytes, wanted {end}; write or copy it again")


def map_tensors(file: BinaryIO, entries: Mapping[str, Entry]) -> dict[str, Tensor]:
    """Tensors over the file's own pages: nothing is read until it is looked at.

    Writing to one changes this process's copy of the page, never the file.
    """
    import torch

    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tensors = {}
    for name, entry in entries.items():
        dtype, count = getattr(torch, entry.dtype), math.prod(entry.shape)
        flat = torch.empty(0, dtype=dtype)
        if count:
            flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=entry.start)
        tensors[name] = flat.reshape(entry.shape)
    return tensors


def write(file: BinaryIO, texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Write header and tensors; holds no second copy of a contiguous tensor."""
    # wide items first, which keeps every tensor aligned
    ordered = sorted(tensors.items(), key=lambda named: -named[1].element_size())
    file.write(_header(texts, ordered))
    for _, tensor in ordered:
        file.write(bytes_of(tensor))


def _header(texts: Mapping[str, str], ordered: Sequence[tuple[str, Tensor]]) -> bytes:
    """The header's bytes, padded so that the largest tensor starts on a page.

    Reading one block of it then touches no page of the blocks beside it.
    """
    header: dict[str, object] = {"__metadata__": dict(texts)}
    end = largest = to_align = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _CODES[dtype_name(tensor)],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        if tensor.nbytes > largest:
            largest, to_align = tensor.nbytes, start if start % 8 == 0 else 0
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-(8 + len(encoded) + to_align) % PAGE)
    return len(encoded).to_bytes(8, "little") + encoded
