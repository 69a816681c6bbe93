"""The rows of a document as a server answers them: it selects and repairs, and says what it kept.

A request for each scored token: the document, the question and the answer so far, of which the
server is told how much is the question. Distributions stay in the server, so kl is left out, and so
is what is read without the question (a continuation's nll): a server selects by what it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from attrs import frozen

from kri_core.errors import ConfigError, EngineError
from kri_core.evaluation.tasks import Document, Item, LogProbs, Reading
from kri_core.running.answering import Outcome, Selection
from kri_core.running.planning import PlannedRow
from kri_core.running.selecting import Chooser
from kri_core.running.server import Routed, Server, Step
from kri_core.types import Cartridge

TOGETHER = 16  # requests under way at once
WHOLE = "whole"  # a stack of every block
Fed = tuple[int, ...]  # the tokens after the document
Needed = Mapping[Fed, tuple[int, ...]]  # whose log-probabilities are wanted behind them


@frozen
class Asking:
    """How all requests of a row and seed are routed."""

    stack: str | None  # None: from no cartridge
    prior: str | None = None
    repairs: bool = False


@frozen(eq=False)
class ServedRows:
    """Answers the items of one document."""

    server: Server
    cartridge: Cartridge
    document: Document
    chooser: Chooser

    def answer(self, row: PlannedRow, seed: int) -> list[tuple[Selection, Outcome]]:
        """Every item's requests, several at once; each item has its share of the seconds."""
        asking, start = self._asking(row, seed), time.perf_counter()
        needed = [needed_by(item) for item in self.document.items]
        asked = [
            (item, fed, wanted, asking.repairs and at == 0)
            for item, of_item in zip(self.document.items, needed, strict=True)
            for at, (fed, wanted) in enumerate(of_item.items())
        ]
        with ThreadPoolExecutor(TOGETHER) as threads:
            steps = iter(list(threads.map(lambda one: self._step(asking, *one), asked)))
        seconds = (time.perf_counter() - start) / len(needed)
        return [
            self._outcome(asking, item, {fed: next(steps) for fed in of_item}, seconds)
            for item, of_item in zip(self.document.items, needed, strict=True)
        ]

    def _asking(self, row: PlannedRow, seed: int) -> Asking:
        if row.kind == "floor":
            return Asking(None)
        name = row.name
        if row.kind == "full":
            name = WHOLE
        elif row.kind == "random":  # what `random_blocks` draws
            name = f"{row.name.removesuffix('(random)')}(~random-middle[seed={seed}])"
        stack = self.chooser.router(name).stack
        path = self.chooser.prior_path(name, row.probe_set)
        prior = None if path is None else path.stem
        return Asking(str(stack.config), prior, bool(stack.repairs))

    def _step(
        self, asking: Asking, item: Item, fed: Fed, wanted: Sequence[int], reports: bool
    ) -> Step:
        """A request that reports a repair makes a second token: the report is a step late."""
        if asking.stack is None:
            return self.server.step(fed, wanted, {"enabled": False}, 1)
        params: dict[str, object] = {
            "cartridge_id": self.cartridge.prefix_hash,
            "stack": asking.stack,
            "question_tokens": len(item.question),
        }
        if asking.prior is not None:
            params["prior"] = asking.prior
        prompt = (*self.document.token_ids, *fed)
        return self.server.step(prompt, wanted, params, 2 if reports else 1)

    def _outcome(
        self, asking: Asking, item: Item, steps: Mapping[Fed, Step], seconds: float
    ) -> tuple[Selection, Outcome]:
        found = [answered(reading, steps) for reading in readable(item)]
        said = [step.routed for step in steps.values() if step.routed is not None]
        layout = self.cartridge.layout
        selection, fraction = Selection((), document=False), 0.0
        if asking.stack is not None:
            first = agreed(asking.stack, said, len(steps), layout.num_blocks)
            selection = Selection(first.selected, refreshed_tokens=_refreshed(asking, said))
            fraction = first.kept_fraction
        covered = item.covered(selection.kept, layout.block_size, layout.num_blocks)
        return selection, Outcome({**item.score(found), **covered}, fraction, seconds)


def readable(item: Item) -> tuple[Reading, ...]:
    """The readings that start with the question."""
    readings = item.readings()
    if any(reading.draft for reading in readings):
        raise ConfigError(
            f"item {item.id!r} compares whole distributions, which a server does not give; run "
            "this task without --server"
        )
    count = len(item.question)
    return tuple(reading for reading in readings if reading.token_ids[:count] == item.question)


def needed_by(item: Item) -> Needed:
    """Each distinct beginning once, with all tokens that are wanted behind it."""
    needed: dict[Fed, dict[int, None]] = {}
    for reading in readable(item):
        for at in range(reading.answer, len(reading.token_ids)):
            wanted = needed.setdefault(reading.token_ids[:at], {})
            wanted[reading.token_ids[at]] = None
            if at == reading.answer:
                wanted.update(dict.fromkeys(reading.among))
    return {fed: tuple(wanted) for fed, wanted in needed.items()}


def answered(reading: Reading, steps: Mapping[Fed, Step]) -> LogProbs:
    """One reading's answer from its steps."""
    tokens, places = reading.token_ids, range(reading.answer, len(reading.token_ids))
    own = [steps[tokens[:at]] for at in places]
    return LogProbs(
        scored=tuple(step.log_probs[tokens[at]] for step, at in zip(own, places, strict=True)),
        best=tuple(step.best for step in own),
        among=tuple(own[0].log_probs[token] for token in reading.among),
    )


def agreed(stack: str, said: Sequence[Routed], wanted: int, total_blocks: int) -> Routed:
    """What all answers of an item say of their routing; they must say the same."""
    told = {(one.stack, one.selected, one.total_blocks) for one in said}
    if len(said) < wanted or len(told) > 1:
        raise EngineError(
            f"of {wanted} answers to one item {len(said)} were routed, in {len(told)} ways; an "
            "evaluation needs a server that routes all alike: start it without --on-error dense"
        )
    first = said[0]
    if (first.stack, first.total_blocks) != (stack, total_blocks):
        raise EngineError(
            f"{stack} over {total_blocks} blocks was asked and the server routed {first.stack} "
            f"over {first.total_blocks}; serve with this kri-core and no --block-size of its own"
        )
    return first


def _refreshed(asking: Asking, said: Sequence[Routed]) -> int:
    if not asking.repairs:
        return 0
    for one in said:
        if one.refreshed_tokens is not None:
            return one.refreshed_tokens
    raise EngineError(
        f"the server does not say what the repair of {asking.stack} came to; see its log"
    )
