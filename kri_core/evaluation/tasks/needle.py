"""needle8: access codes between sentences of filler, each asked for by the words before it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, le

from kri_core.evaluation.tasks.assembling import Haystack, bury
from kri_core.evaluation.tasks.contract import Document, ProbeSet, Scores, Task, Tokenizer
from kri_core.evaluation.tasks.draws import Draws
from kri_core.evaluation.tasks.items import Recall
from kri_core.evaluation.tasks.prose import NAMES
from kri_core.evaluation.tasks.scoring import Metric, joint
from kri_core.probe_texts import DEFAULT_PROBE_TEXTS

DIGITS = "0123456789"
CODE_LENGTH = 5
HELD_OUT = 64  # filler tokens scored after the document, EVAL 1
JOINT = (2, 4)  # questions of one document that must all be right
JOINT_METRICS = tuple(
    Metric(f"joint-em-{size}", f"chance that {size} questions of a document are all right")
    for size in JOINT
)
FACT = " The access code for {name} is {code}."
QUESTION = "\n\nThe access code for {name} is"
GENERIC = ProbeSet("generic", DEFAULT_PROBE_TEXTS[:1])


@frozen
class Buried(Task):
    """Documents of filler with access codes in them, and a question for each code."""

    tokens: int = field(default=2048, validator=ge(1))
    docs: int = field(default=25, validator=ge(1))
    seed: int = field(default=0, validator=ge(0))

    wordings: ClassVar[tuple[str, ...]] = (FACT,)  # each fact is stated once in each

    @property
    @abstractmethod
    def num_facts(self) -> int:
        """Codes in a document."""

    @abstractmethod
    def _rivals(self, codes: Sequence[str], which: int) -> tuple[Sequence[str], int]:
        """The codes that one question chooses among, and the place of the right one."""

    def documents(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Documents of their own names, codes and filler."""
        return (self._document(tokenizer, index) for index in range(self.docs))

    def _document(self, tokenizer: Tokenizer, index: int) -> Document:
        draws = Draws(type(self).__name__, self.seed, index)
        *names, stranger = draws.some(NAMES, self.num_facts + 1)
        codes = draw_codes(draws, self.num_facts)
        facts = [
            [wording.format(name=name, code=code) for wording in self.wordings]
            for name, code in zip(names, codes, strict=True)
        ]
        haystack = bury(tokenizer, facts, self.tokens, 1 + HELD_OUT, draws)
        items = [
            self._question(tokenizer, f"{index:03}/{name}", codes, which, haystack)
            for which, name in enumerate(names)
        ]
        return Document(
            id=f"{index:03}",
            group=f"{index:03}",
            token_ids=haystack.token_ids,
            items=tuple(items),
            probes=(GENERIC, ProbeSet("domain", (QUESTION.format(name=stranger),))),
        )

    def _question(
        self,
        tokenizer: Tokenizer,
        item_id: str,
        codes: Sequence[str],
        which: int,
        haystack: Haystack,
    ) -> Recall:
        """Ask for one code; an item is called by its document and name."""
        text = QUESTION.format(name=item_id.partition("/")[2])
        rivals, correct = self._rivals(codes, which)
        return Recall(
            id=item_id,
            question=tokenizer.encode(text),
            text=text,
            options=[tokenizer.encode(f" {code}") for code in rivals],
            correct=correct,
            evidence=haystack.spans[which],
            continuation=haystack.held_out,
        )


@frozen
class Needle8(Buried):
    """needle8: eight codes in 2 048 tokens, each asked for against the other seven."""

    needles: int = field(default=8, validator=[ge(2), le(len(DIGITS))])

    metrics: ClassVar[tuple[Metric, ...]] = JOINT_METRICS

    @property
    def num_facts(self) -> int:
        """One each."""
        return self.needles

    def _rivals(self, codes: Sequence[str], which: int) -> tuple[Sequence[str], int]:
        return codes, which

    def per_document(self, items: Sequence[Scores]) -> Scores:
        """joint-em of as many questions as there are."""
        right = [scores["em"] for scores in items if "em" in scores]
        sizes = [size for size in JOINT if size <= len(right)]
        return {f"joint-em-{size}": joint(right, size) for size in sizes}


@frozen
class Needle8Fast(Needle8):
    """needle8 in 1 024 tokens."""

    tokens: int = field(default=1024, validator=ge(1))


@frozen
class Needle8Long(Needle8):
    """needle8 in 4 096 tokens."""

    tokens: int = field(default=4096, validator=ge(1))


def draw_codes(draws: Draws, count: int) -> tuple[str, ...]:
    """Codes that all start with another digit."""
    firsts = draws.some(DIGITS, count)
    return tuple(
        first + "".join(draws.one(DIGITS) for _ in range(CODE_LENGTH - 1)) for first in firsts
    )
