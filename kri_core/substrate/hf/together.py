"""Texts that are read after cached prefixes, several in one forward.

A forward of a few tokens waits for the weights, which all of its texts share. Every text has its
own row with its own prefix; shorter ones are filled up behind their end, where nothing attends to
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from attrs import frozen
from torch import Tensor

from kri_core.substrate.hf.generate import cache_of
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.prefix import Prefix

MAX_TOKENS = 8192  # rows · (prefix and text) of one forward, which bounds its memory
MAX_STRETCH = 2  # the longest text of a forward over its shortest: at most half is filling


@frozen(eq=False)
class Text:
    """Tokens to feed after a prefix; wanted are the distributions from `start` to the last."""

    prefix: Prefix
    token_ids: tuple[int, ...]
    start: int

    @property
    def num_cached(self) -> int:
        """Tokens before it."""
        return int(self.prefix.keys[0].shape[1])


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
    """The places of texts with equally long prefixes and similar lengths, within MAX_TOKENS."""
    lengths = [(text.num_cached, len(text.token_ids)) for text in texts]
    places: list[int] = []
    for place in sorted(range(len(texts)), key=lambda place: lengths[place]):
        cached, length = lengths[place]
        if places:
            first_cached, shortest = lengths[places[0]]
            fits = (len(places) + 1) * (cached + length) <= MAX_TOKENS
            if cached != first_cached or length > MAX_STRETCH * shortest or not fits:
                yield places
                places = []
        places.append(place)
    if places:
        yield places


def _forward(model: HfModel, first: int, texts: Sequence[Text]) -> Iterator[Tensor]:
    longest = max(len(text.token_ids) for text in texts)
    start = min(text.start for text in texts)
    filled = [
        [*text.token_ids, *text.token_ids[-1:] * (longest - len(text.token_ids))] for text in texts
    ]
    logits = model.run(
        torch.tensor(filled, device=model.device),
        model.positions(first, longest).expand(len(texts), -1),
        cache=cache_of(*(text.prefix for text in texts)),
        keep=longest - start,
    )
    for row, text in zip(logits, texts, strict=True):
        wanted = row[text.start - start : len(text.token_ids) - start]
        yield wanted.float().log_softmax(-1).cpu()
