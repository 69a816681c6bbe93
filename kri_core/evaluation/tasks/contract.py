"""What a task is made of: documents, their items, and what an item asks of the reader.

The reader is whatever runs the model behind a stack: it prefills a document, keeps the blocks that
the stack selects, feeds a reading's tokens after them and answers with log-probabilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Protocol

from attrs import asdict, field, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.log_probs import LogProbs, Reading, as_ids
from kri_core.evaluation.tasks.scoring import Metric, Span, cover
from kri_core.identity import digest

Scores = Mapping[str, float]  # a score's name → its value


class Tokenizer(Protocol):
    """What a task needs of a model's tokenizer."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of the text and nothing around them; special tokens in it are recognised."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""

    def open_turn(self, system: str) -> str:
        """What the chat template puts before the words of a first user turn.

        After a system message, if the template takes one. Without a template: the special tokens
        that start a text.
        """


@frozen
class Item(ABC):
    """One thing that is asked of a document, and how the answer is scored."""

    id: str
    question: tuple[int, ...] = field(converter=as_ids)  # fed after the document; the stack's query
    text: str = field(kw_only=True)  # the question as text; a probe must not hold it
    evidence: tuple[Span, ...] = field(default=(), kw_only=True)

    metrics: ClassVar[tuple[Metric, ...]]  # by the first one stacks are ranked

    @property
    def chance(self) -> Scores:
        """What guessing scores; empty where guessing means nothing."""
        return {}

    @abstractmethod
    def readings(self) -> tuple[Reading, ...]:
        """What the reader is asked, in this order."""

    @abstractmethod
    def score(self, routed: Sequence[LogProbs], dense: Sequence[LogProbs] | None = None) -> Scores:
        """Score the answers to `readings`, one each; `dense` with every block visible.

        A score that needs what was not given (`dense`, or whole distributions) is left out. A
        server answers only the readings that start with the question; let those come first.
        """

    def covered(self, kept: Sequence[int], block_size: int, num_blocks: int) -> Scores:
        """Score the selection itself, where it is known which blocks hold the answer."""
        if not self.evidence:
            return {}
        return {"cover": cover(self.evidence, kept, block_size, num_blocks)}


@frozen
class ProbeSet:
    """Texts that a scorer may run the model on, none of which asks what the items ask."""

    name: str
    texts: tuple[str, ...]


@frozen
class Document:
    """A text as tokens, what is asked of it, and what a scorer may be told about it."""

    id: str
    group: str  # documents of one group are resampled together
    token_ids: tuple[int, ...] = field(converter=as_ids, repr=False)
    items: tuple[Item, ...] = field(repr=False)
    probes: tuple[ProbeSet, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Refuse probes that ask, evidence outside the document and ids that are there twice."""
        for probes in self.probes:
            check_probes(probes.texts, self.items)
        for item in self.items:
            if any(span.stop > len(self.token_ids) for span in item.evidence):
                raise ConfigError(
                    f"item {item.id!r} has evidence behind the {len(self.token_ids)} tokens of "
                    f"document {self.id!r}; give spans of its own tokens"
                )
        for one, other in pairwise(sorted(item.id for item in self.items)):
            if one == other:
                raise ConfigError(f"document {self.id!r} has two items {one!r}; rename one")

    @property
    def digest(self) -> str:
        """One digest of all that is asked, so that results can say what they are of."""
        return digest(asdict(self), [type(item).__name__ for item in self.items])


class Task(ABC):
    """What is asked: an attrs class whose fields are the task's parameters.

    It is an entry point of the group `kri_core.tasks`. Promised: the same parameters and tokenizer
    give the same documents, in every process.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()  # those of `per_document`

    @abstractmethod
    def documents(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Every document, one after the other."""

    def per_document(self, items: Sequence[Scores]) -> Scores:
        """What the scores of all items of one document make together."""
        return {}


def chance(items: Sequence[Item]) -> Scores:
    """What guessing scores on average, for each score that every item has a chance of."""
    shared = set.intersection(*(set(item.chance) for item in items)) if items else set()
    return {name: sum(item.chance[name] for item in items) / len(items) for name in sorted(shared)}


def check_probes(texts: Sequence[str], items: Sequence[Item]) -> None:
    """Refuse a probe that holds an evaluated question, whatever its case and white space."""
    asked = {_folded(item.text): item for item in items if item.text.strip()}
    for text in texts:
        for question, item in asked.items():
            if f" {question} " in f" {_folded(text)} ":
                raise ConfigError(
                    f"the probe {text!r} asks what item {item.id!r} asks, which flatters every "
                    "scorer; take a probe that is no evaluated question"
                )


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
