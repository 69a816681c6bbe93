"""The one place where a repair's own forward meets the attention layers' writing of KV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

Written = tuple[Tensor, Tensor, Tensor]  # keys, values [token, kv_head, head_dim], slots [token]
Watcher = Callable[[Any, Tensor, Tensor, Tensor], Written | None]

_watcher: ContextVar[Watcher | None] = ContextVar("kri_core_repair", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within the block every layer asks `watcher` what it is to write."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def captured(layer: Any, key: Tensor, value: Tensor, slots: Tensor) -> Written | None:  # noqa: ANN401
    """What a layer is to write: what it was given, unless a repair is running."""
    watcher = _watcher.get()
    return (key, value, slots) if watcher is None else watcher(layer, key, value, slots)
