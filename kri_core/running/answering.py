"""The reader of an evaluation: log-probabilities over the kept blocks, on the hf substrate.

A reading is one forward: the question and the answer's tokens together, over what was kept. What
is the same, the same blocks and the same item, is computed once per document.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attrs import Factory, define, frozen

from kri_core.evaluation.tasks import Item, LogProbs, Reading, Scores
from kri_core.substrate.hf import HfModel, answer, load_prefix
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


@define(eq=False)
class Reader:
    """Answers the items of one document."""

    model: HfModel
    cartridge: Cartridge
    _outcomes: dict[object, Outcome] = Factory(dict)
    _dense: dict[tuple[Reading, tuple[int, ...]], LogProbs] = Factory(dict)
    _key: object = None  # the selection that is loaded
    _prefix: Prefix | None = None
    _read: dict[Reading, tuple[LogProbs, float]] = Factory(dict)  # with that selection

    def outcome(self, item: Item, selection: Selection) -> Outcome:
        """An item's scores; the seconds are those of the forwards, whenever they ran."""
        key = (item.id, selection.key)
        if key not in self._outcomes:
            self._outcomes[key] = self._scored(item, selection)
        return self._outcomes[key]

    def _scored(self, item: Item, selection: Selection) -> Outcome:
        prefix = self._loaded(selection)
        readings = item.readings()
        found = [self._answered(reading, prefix) for reading in readings]
        routed = [log_probs for log_probs, _ in found]
        pairs = zip(readings, routed, strict=True)
        dense = [self._dense_of(reading, own) for reading, own in pairs]
        layout = self.cartridge.layout
        return Outcome(
            scores={
                **item.score(routed, dense),
                **item.covered(selection.kept, layout.block_size, layout.num_blocks),
            },
            kept_fraction=self._kept_fraction(prefix),
            seconds=sum(seconds for _, seconds in found),
        )

    def _loaded(self, selection: Selection) -> Prefix:
        """The blocks of a selection; what was read with another one is let go."""
        if self._prefix is None or self._key != selection.key:
            self._key, self._read = selection.key, {}
            stored = load_prefix(self.model, self.cartridge, selection.kept)
            whole = selection.repaired or stored
            self._prefix = whole if selection.document else stored.before(0)
        return self._prefix

    def _kept_fraction(self, prefix: Prefix) -> float:
        layout = self.cartridge.layout
        tokens = max(0, int(prefix.keys[0].shape[1]) - len(layout.tail))
        return tokens / layout.block_size / layout.num_blocks if layout.num_blocks else 1.0

    def _answered(self, reading: Reading, prefix: Prefix) -> tuple[LogProbs, float]:
        if reading not in self._read:
            start = time.perf_counter()
            draft = self._drafted(reading, prefix)
            log_probs = LogProbs.from_rows(reading, self._rows(reading, draft, prefix))
            self._read[reading] = (log_probs, time.perf_counter() - start)
        return self._read[reading]

    def _dense_of(self, reading: Reading, routed: LogProbs) -> LogProbs:
        """The same with every block visible, fed the routed reader's draft."""
        draft: tuple[int, ...] = ()
        if reading.draft and routed.rows is not None:
            draft = tuple(int(token) for token in routed.rows.argmax(1)[:-1])
        key = (reading, draft)
        if key not in self._dense:
            blocks = range(self.cartridge.layout.num_blocks)
            every = load_prefix(self.model, self.cartridge, blocks)
            rows = self._rows(reading, draft, every)
            self._dense[key] = LogProbs.from_rows(reading, rows)
        return self._dense[key]

    def _drafted(self, reading: Reading, prefix: Prefix) -> tuple[int, ...]:
        """The likeliest tokens, each after those before it; the last one is not fed."""
        draft: list[int] = []
        for _ in range(reading.draft - 1):
            draft.append(int(self._rows(reading, draft, prefix)[-1].argmax()))
        return tuple(draft)

    def _rows(self, reading: Reading, draft: Sequence[int], prefix: Prefix) -> Any:  # noqa: ANN401
        """Float32 [position, vocabulary] of the wanted positions, in one forward."""
        fed = (*reading.token_ids, *draft)
        answered = answer(self.model, self.cartridge, prefix.blocks, fed, 0, repaired=prefix)
        return answered.question_logprobs[reading.start :].numpy()
