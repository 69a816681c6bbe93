"""Texts that are read after cached prefixes, several in one forward.

A forward of a few tokens waits for the weights, which all of its texts share. They stand one after
the other in one row, each at the positions it has alone, and each attends to its own prefix and to
itself. Texts over one prefix read it together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, groupby

import torch
from attrs import frozen
from torch import Tensor

from kri_core.substrate.hf.attention import PrefixAttention
from kri_core.substrate.hf.interface import attending
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.packed import PackedAttention
from kri_core.substrate.hf.prefix import Prefix

MAX_TOKENS = 512  # of one forward: with more a core is hardly faster, and their logits are held


@frozen(eq=False)
class Text:
    """Tokens to feed after a prefix; wanted are the distributions from `start` to the last."""

    prefix: Prefix
    token_ids: tuple[int, ...]
    start: int


def read_together(model: HfModel, first: int, texts: Sequence[Text]) -> list[Tensor]:
    """Float32 log-probabilities [position, vocab] of each text, which starts at position `first`.

    What is read together depends on these texts alone, so that the same call gives the same bits.
    """
    found: dict[int, Tensor] = {}
    for places in _forwards(texts):
        rows = _forward(model, first, [texts[place] for place in places])
        found.update(zip(places, rows, strict=True))
    return [found[place] for place in range(len(texts))]


def _forwards(texts: Sequence[Text]) -> Iterator[list[int]]:
    """The places of the texts of each forward; those over one prefix are neighbours."""
    order = {id(text.prefix): place for place, text in reversed([*enumerate(texts)])}
    places: list[int] = []
    held = 0
    for place in sorted(range(len(texts)), key=lambda place: order[id(texts[place].prefix)]):
        length = len(texts[place].token_ids)
        if places and held + length > MAX_TOKENS:
            yield places
            places, held = [], 0
        places.append(place)
        held += length
    if places:
        yield places


def _forward(model: HfModel, first: int, texts: Sequence[Text]) -> Iterator[Tensor]:
    ends = list(accumulate(len(text.token_ids) for text in texts))
    starts = [0, *ends[:-1]]
    positions = [model.positions(first, len(text.token_ids)) for text in texts]
    wanted = [
        torch.arange(start + text.start, end)
        for text, start, end in zip(texts, starts, ends, strict=True)
    ]
    with attending(model.model, _attention(texts)):
        logits = model.run(
            model.tokens([*chain.from_iterable(text.token_ids for text in texts)]),
            torch.cat(positions, 1),
            keep=torch.cat(wanted).to(model.device),
        )
    for rows in torch.split(logits[0], [len(places) for places in wanted]):
        yield rows.float().log_softmax(-1).cpu()


def _attention(texts: Sequence[Text]) -> PackedAttention:
    """Neighbours over one prefix are one part of it, in which none sees another."""
    parts = []
    for _, same in groupby(texts, key=lambda text: id(text.prefix)):
        part = list(same)
        lengths = torch.tensor([len(text.token_ids) for text in part])
        owner = torch.arange(len(part)).repeat_interleave(lengths)
        owner = owner.to(part[0].prefix.keys[0].device)
        hidden = owner[:, None] != owner if len(part) > 1 else None
        attend = PrefixAttention(part[0].prefix, hidden=hidden)
        parts.append((partial(len, owner), attend))
    return PackedAttention(tuple(parts))
