"""Taking out of a forward, before each decoder layer, the tokens that are not computed any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from kri_core.substrate.hf.refreshing import BlendedAttention

PER_TOKEN = ("position_embeddings", "position_ids", "cache_position")  # what a layer gets besides


class NothingLeftError(Exception):
    """No row is left to compute: the pass ends here."""


@contextmanager
def only_rows_in_force(
    layers: Sequence[nn.Module], passes: Sequence[BlendedAttention]
) -> Iterator[None]:
    """Within the block each decoder layer computes the rows in force and the questions'."""
    held = [one.places for one in passes]  # what the hidden states hold of each pass
    handles = [
        layer.register_forward_pre_hook(partial(_cut, passes, held), with_kwargs=True)
        for layer in layers
    ]
    try:
        yield
    except NothingLeftError:
        pass
    finally:
        for handle in handles:
            handle.remove()


def _cut(
    passes: Sequence[BlendedAttention],
    held: list[Tensor],
    _layer: nn.Module,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Before a decoder layer: hidden states [1, row, dim] of the rows in force, and positions."""
    wanted = [one.places for one in passes]
    if not any(len(places) for places in wanted):
        raise NothingLeftError
    if all(len(one.order) == len(places) for one, places in zip(passes, wanted, strict=True)):
        return None
    kept = [torch.searchsorted(old, new) for old, new in zip(held, wanted, strict=True)]
    inside = _joined(kept, [len(old) for old in held])
    places = _joined(wanted, [len(one.order) for one in passes])
    held[:] = wanted
    cut = {name: _at(named[name], places) for name in PER_TOKEN if named.get(name) is not None}
    if args:
        return (args[0][:, inside], *args[1:]), {**named, **cut}
    return args, {**named, **cut, "hidden_states": named["hidden_states"][:, inside]}


def _joined(parts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Places within parts that are so long, as places in the row of all of them."""
    starts = accumulate(lengths, initial=0)
    return torch.cat([start + part for start, part in zip(starts, parts, strict=False)])


def _at(value: Any, places: Tensor) -> Any:  # noqa: ANN401
    """A layer's argument, or tuple of them, at some tokens: [token] or [1, token, ...]."""
    if isinstance(value, tuple):
        return tuple(_at(part, places) for part in value)
    return value[places] if value.ndim == 1 else value[:, places]
