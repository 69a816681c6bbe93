"""The reader of an evaluation: log-probabilities over the kept blocks, on the hf substrate.

All items of a document are read together, each a question and its answer's tokens over what was
kept for it. The same items over the same blocks are read once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import Factory, define, frozen

from kri_core.evaluation.tasks import Item, LogProbs, Reading, Scores
from kri_core.substrate.hf import HfModel, Text, load_prefix, read_together
from kri_core.substrate.hf.prefix import Prefix
from kri_core.types import Cartridge


@frozen(eq=False)
class Selection:
    """What an item's answer may attend to."""

    kept: tuple[int, ...]
    document: bool = True  # False: nothing, not even the tail
    repaired: Prefix | None = None  # None: as stored
    variant: str = ""  # tells repairs of the same blocks apart
    refreshed_tokens: int = 0
    seconds: float = 0.0  # that it took to choose and to repair

    @property
    def key(self) -> object:
        """Equal for selections that are answered alike."""
        return self.kept, self.document, self.variant


@frozen
class Outcome:
    """How one item came out."""

    scores: Scores
    kept_fraction: float  # of the whole blocks, counted in what was loaded
    seconds: float


Pair = tuple[Item, Selection]
Draft = tuple[int, ...]
Asked = tuple[Reading, Draft, Prefix]  # a reading, the draft that is fed behind it, and the blocks


@define(eq=False)
class Reader:
    """Answers the items of one document."""

    model: HfModel
    cartridge: Cartridge
    _outcomes: dict[object, tuple[Outcome, ...]] = Factory(dict)
    _dense: dict[tuple[Reading, Draft], LogProbs] = Factory(dict)

    def outcomes(self, pairs: Sequence[Pair]) -> tuple[Outcome, ...]:
        """How items come out, each under its selection; each has its share of the seconds."""
        key = tuple((item.id, selection.key) for item, selection in pairs)
        if key not in self._outcomes:
            self._outcomes[key] = tuple(self._read(pairs))
        return self._outcomes[key]

    def _read(self, pairs: Sequence[Pair]) -> Iterator[Outcome]:
        start = time.perf_counter()
        prefixes = {selection.key: self._prefix(selection) for _, selection in pairs}
        wanted = dict.fromkeys(
            (reading, selection.key) for item, selection in pairs for reading in item.readings()
        )
        asked = [self._asked(reading, prefixes[key]) for reading, key in wanted]
        routed = dict(zip(wanted, self._answered(asked), strict=True))
        seconds = (time.perf_counter() - start) / len(pairs)
        dense = dict(zip(wanted, self._by_every_block(asked), strict=True))
        for item, selection in pairs:
            own = [(reading, selection.key) for reading in item.readings()]
            scores = item.score([routed[one] for one in own], [dense[one] for one in own])
            layout = self.cartridge.layout
            covered = item.covered(selection.kept, layout.block_size, layout.num_blocks)
            fraction = self._kept_fraction(prefixes[selection.key])
            yield Outcome({**scores, **covered}, fraction, seconds)

    def _prefix(self, selection: Selection) -> Prefix:
        if not selection.document:
            return load_prefix(self.model, self.cartridge, ()).before(0)
        return selection.repaired or load_prefix(self.model, self.cartridge, selection.kept)

    def _kept_fraction(self, prefix: Prefix) -> float:
        layout = self.cartridge.layout
        tokens = max(0, int(prefix.keys[0].shape[1]) - len(layout.tail))
        return tokens / layout.block_size / layout.num_blocks if layout.num_blocks else 1.0

    def _asked(self, reading: Reading, prefix: Prefix) -> Asked:
        """A reading, with the likeliest tokens behind it if it drafts; the last one is not fed."""
        draft: Draft = ()
        for _ in range(reading.draft - 1):
            (rows,) = self._rows([(reading, draft, prefix)])
            draft += (int(rows[-1].argmax()),)
        return reading, draft, prefix

    def _by_every_block(self, asked: Sequence[Asked]) -> list[LogProbs]:
        """The same with every block visible, fed the routed reader's draft."""
        missing = [one for one in asked if one[:2] not in self._dense]
        if missing:
            blocks = range(self.cartridge.layout.num_blocks)
            every = load_prefix(self.model, self.cartridge, blocks)
            unread = dict.fromkeys((reading, draft) for reading, draft, _ in missing)
            answers = self._answered([(*one, every) for one in unread])
            self._dense.update(zip(unread, answers, strict=True))
        return [self._dense[reading, draft] for reading, draft, _ in asked]

    def _answered(self, asked: Sequence[Asked]) -> list[LogProbs]:
        """Drafts are read alone: they differ between rows, and so would what is read with them."""
        together = [one for one in asked if not one[0].draft]
        rows = iter(self._rows(together))
        return [
            LogProbs.from_rows(one[0], next(rows) if not one[0].draft else self._rows([one])[0])
            for one in asked
        ]

    def _rows(self, asked: Sequence[Asked]) -> list[Any]:
        """Float32 [position, vocabulary] of the wanted positions of each."""
        texts = [
            Text(prefix, (*reading.token_ids, *draft), reading.start)
            for reading, draft, prefix in asked
        ]
        found = read_together(self.model, self.cartridge.layout.num_tokens, texts)
        return [rows.numpy() for rows in found]
