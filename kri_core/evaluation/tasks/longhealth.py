"""longhealth FILE: questions about patient records, five options each (arXiv 2401.14490).

Reads the public `benchmark_v5.json`, which is not shipped. A document is a patient's texts, a blank
line between; a patient is a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TypeGuard

from attrs import field, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.assembling import opening
from kri_core.evaluation.tasks.brought import FromFile, answer_ids, document
from kri_core.evaluation.tasks.contract import Document, Item, Tokenizer
from kri_core.evaluation.tasks.files import held_text, parse, place_of, read_text
from kri_core.evaluation.tasks.items import Choice
from kri_core.evaluation.tasks.scoring import Span

OPTIONS = tuple(f"answer_{letter}" for letter in "abcde")
BETWEEN = "\n\n"


@frozen
class Question:
    """One question, checked."""

    number: str
    text: str
    options: tuple[str, ...]
    correct: int
    location: Mapping[str, object] = field(repr=False)


@frozen
class Patient:
    """One patient, checked."""

    id: str
    texts: Mapping[str, str] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)


@frozen
class LongHealth(FromFile):
    """LongHealth, from its public file."""

    def documents(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """One per patient; the whole file is checked before the first."""
        for patient in read_patients(Path(self.path)):
            tokens: list[int] = []
            places: dict[str, Span] = {}
            before = len(opening(tokenizer))
            for name, text in patient.texts.items():
                tokens += tokenizer.encode(BETWEEN) if tokens else ()
                start = before + len(tokens)
                tokens += tokenizer.encode(text)
                places[name] = Span(start, before + len(tokens))
            items = tuple(self._item(tokenizer, patient, it, places) for it in patient.questions)
            yield document(tokenizer, patient.id, patient.id, tokens, items)

    def _item(
        self, tokenizer: Tokenizer, patient: Patient, asked: Question, places: Mapping[str, Span]
    ) -> Item:
        return Choice(
            id=f"{patient.id}/{asked.number}",
            question=self.prompt(tokenizer, asked.text),
            text=asked.text,
            options=[answer_ids(tokenizer, option) for option in asked.options],
            correct=asked.correct,
            evidence=tuple(
                span
                for name, place in asked.location.items()
                for span in _spans(tokenizer, patient.texts[name], place, places[name])
            ),
        )


def _spans(tokenizer: Tokenizer, text: str, place: object, whole: Span) -> list[Span]:
    """Where in a text the answer is, widened to whole tokens.

    The file gives lists of `start` and `end` as shares of the text's length; a place of another
    form is the whole text.
    """
    if not isinstance(place, Mapping):
        return [whole]
    starts, ends = place.get("start"), place.get("end")
    if not (_are_shares(starts) and _are_shares(ends) and len(starts) == len(ends)):
        return [whole]
    spans = []
    for start, end in zip(starts, ends, strict=True):
        first = len(tokenizer.encode(text[: int(start * len(text))])) - 1
        stop = len(tokenizer.encode(text[: ceil(end * len(text))])) + 1
        begin = whole.start + max(0, first)
        spans.append(Span(begin, max(begin + 1, min(whole.start + stop, whole.stop))))
    return spans


def _are_shares(values: object) -> TypeGuard[Sequence[float]]:
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(value, (int, float)) and 0 <= value <= 1 for value in values)
    )


def read_patients(path: Path) -> list[Patient]:
    """Every patient; the first fault is an error that names patient and question."""
    patients = parse(read_text(path), str(path))
    if not patients:
        raise ConfigError(f"{path} has no patient; give the whole file")
    return [_patient(name, record, f"{path} {name}") for name, record in patients.items()]


def _patient(name: str, record: object, where: str) -> Patient:
    if not isinstance(record, dict):
        raise ConfigError(f"{where} is no object; give texts and questions")
    texts, questions = record.get("texts"), record.get("questions")
    if not isinstance(texts, dict) or not texts:
        raise ConfigError(f"{where} has no 'texts'; give an object of texts by id")
    if not isinstance(questions, list) or not questions:
        raise ConfigError(f"{where} has no 'questions'; give a list of them")
    held = {key: held_text(texts, key, where) for key in texts}
    return Patient(name, held, tuple(_question(each, held, where) for each in questions))


def _question(record: object, texts: Mapping[str, str], where: str) -> Question:
    if not isinstance(record, dict):
        raise ConfigError(f"{where} has a question that is no object; give one")
    number = str(record.get("No", "?"))
    where = f"{where} question {number}"
    options = tuple(held_text(record, key, where) for key in OPTIONS)
    location = record.get("answer_location")
    location = location if isinstance(location, dict) else {}
    stray = sorted(location.keys() - texts.keys())
    if stray:
        raise ConfigError(f"{where} has its answer in {stray[0]!r}, which is no text; name one")
    return Question(
        number=number,
        text=held_text(record, "question", where),
        options=options,
        correct=place_of(held_text(record, "correct", where), options, where),
        location=location,
    )
