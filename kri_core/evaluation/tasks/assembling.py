"""A document of exactly T tokens: an opening, filler sentences, and needles between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, islice

from attrs import field, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.contract import Tokenizer
from kri_core.evaluation.tasks.draws import Draws
from kri_core.evaluation.tasks.log_probs import as_ids
from kri_core.evaluation.tasks.prose import sentences
from kri_core.evaluation.tasks.scoring import Span

SYSTEM = "You are a helpful assistant."
INSTRUCTION = "Read the document and answer the question.\n\nDocument:\n"
MARGIN = 2  # filler sentences before the first needle and after the last, at least


@frozen
class Haystack:
    """A document's tokens, where its needles lie, and the filler that would come next."""

    token_ids: tuple[int, ...] = field(converter=as_ids)
    spans: tuple[tuple[Span, ...], ...]  # of each fact, in its wordings' order
    held_out: tuple[int, ...] = field(converter=as_ids)


def opening(tokenizer: Tokenizer) -> tuple[int, ...]:
    """A user's turn that begins with a document and stays open."""
    return tuple(tokenizer.encode(tokenizer.open_turn(SYSTEM) + INSTRUCTION))


def bury(
    tokenizer: Tokenizer,
    facts: Sequence[Sequence[str]],
    num_tokens: int,
    held_out: int,
    draws: Draws,
) -> Haystack:
    """Put facts, each in one wording or more, between filler sentences at random.

    A fact's wordings are neighbours, with filler between. The last sentence is cut to fit. Each is
    encoded alone, so that a needle's tokens are its own; a needle starts with a space.
    """
    first = opening(tokenizer)
    pieces = [[tokenizer.encode(wording) for wording in fact] for fact in facts]
    lengths = [len(piece) for fact in pieces for piece in fact]
    stream = _encoded(tokenizer, draws)
    filler, rest = _fill(stream, num_tokens - len(first) - sum(lengths))
    slots = _slots(len(filler), len(lengths), num_tokens, draws)
    places = dict(zip(slots, _shuffled(pieces, draws), strict=True))
    tokens, spans = list(first), {}
    for slot, sentence in enumerate(filler):
        if slot in places:
            fact, wording = places[slot]
            start = len(tokens)
            tokens += pieces[fact][wording]
            spans[places[slot]] = Span(start, len(tokens))
        tokens += sentence
    following = islice(chain(rest, chain.from_iterable(stream)), held_out)
    return Haystack(tokens, _by_fact(spans), following)


def _by_fact(spans: Mapping[tuple[int, int], Span]) -> tuple[tuple[Span, ...], ...]:
    """Spans by (fact, wording) as a tuple for each fact."""
    in_order = [(fact, spans[fact, wording]) for fact, wording in sorted(spans)]
    facts = groupby(in_order, key=lambda told: told[0])
    return tuple(tuple(span for _, span in told) for _, told in facts)


def _shuffled(facts: Sequence[Sequence[object]], draws: Draws) -> list[tuple[int, int]]:
    """(fact, wording) in the order they are told."""
    return [
        (fact, wording)
        for fact in draws.some(range(len(facts)), len(facts))
        for wording in draws.some(range(len(facts[fact])), len(facts[fact]))
    ]


def _slots(sentences: int, needles: int, num_tokens: int, draws: Draws) -> list[int]:
    """The sentences that a needle comes before, ascending."""
    slots = range(MARGIN, sentences - MARGIN + 1)
    if len(slots) < needles:
        raise ConfigError(
            f"{num_tokens} tokens have room for {len(slots)} needles with this tokenizer, not for "
            f"{needles}; give more tokens or fewer needles"
        )
    return sorted(draws.some(slots, needles))


def _encoded(tokenizer: Tokenizer, draws: Draws) -> Iterator[tuple[int, ...]]:
    """Filler sentences; the first one has no space before it."""
    texts = sentences(draws)
    yield tuple(tokenizer.encode(next(texts).lstrip()))
    for text in texts:
        yield tuple(tokenizer.encode(text))


def _fill(
    stream: Iterator[tuple[int, ...]], room: int
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Sentences of `room` tokens in all, and what was cut off the last one."""
    filler: list[tuple[int, ...]] = []
    while room > 0:
        sentence = next(stream)
        filler.append(sentence[:room])
        if len(sentence) >= room:
            return filler, sentence[room:]
        room -= len(sentence)
    return filler, ()
