"""jsonl FILE: what a user brings, one question a line.

A line is `{"document", "question", "answer"}` or `{"document", "question", "options", "correct"}`,
where `correct` is the text of the right option, and perhaps `"id"` and `"group"`. Questions about
one document stand on lines with the same document and group. All lines have options, or none has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import field, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.brought import FromFile, answer_ids, document
from kri_core.evaluation.tasks.contract import Document, Item, Tokenizer
from kri_core.evaluation.tasks.files import held_text, held_texts, parse, place_of, read_text
from kri_core.evaluation.tasks.items import Answer, Choice
from kri_core.identity import digest

KEYS = ("document", "question", "answer", "options", "correct", "id", "group")


@frozen
class Line:
    """One line of the file, checked."""

    id: str
    group: str
    document: str = field(repr=False)
    question: str
    options: tuple[str, ...]  # one alone is an answer without options
    correct: int


@frozen
class Jsonl(FromFile):
    """Your own questions about your own documents."""

    def documents(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Documents as they first occur; the whole file is checked before the first."""
        texts: dict[tuple[str, str], list[Line]] = {}
        for line in read_lines(Path(self.path)):
            texts.setdefault((line.group, line.document), []).append(line)
        for (group, text), lines in texts.items():
            name, tokens = digest(group, text)[:12], tokenizer.encode(text)
            items = tuple(self._item(tokenizer, line) for line in lines)
            yield document(tokenizer, name, group, tokens, items)

    def _item(self, tokenizer: Tokenizer, line: Line) -> Item:
        prompt = self.prompt(tokenizer, line.question)
        options = [answer_ids(tokenizer, option) for option in line.options]
        if len(options) == 1:
            return Answer(line.id, prompt, options[0], text=line.question)
        return Choice(line.id, prompt, options, line.correct, text=line.question)


def read_lines(path: Path) -> list[Line]:
    """Every line that is not blank; the first bad one is an error that names its number."""
    lines: dict[str, Line] = {}
    numbers: dict[str, int] = {}
    chooses: bool | None = None  # options or not, as the first line has it
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if text.strip():
            where = f"{path} line {number}"
            line = _line(parse(text, where), where, number)
            chooses = _check_kind(line, chooses, where)
            if line.id in lines:
                raise ConfigError(
                    f"{where} has the id {line.id!r} of line {numbers[line.id]}; rename one"
                )
            lines[line.id], numbers[line.id] = line, number
    return list(lines.values())


def _check_kind(line: Line, chooses: bool | None, where: str) -> bool:
    """Scores of two kinds make no common figure."""
    own = len(line.options) > 1
    if chooses not in (None, own):
        kinds = ("options", "an answer") if own else ("an answer", "options")
        raise ConfigError(
            f"{where} has {kinds[0]} where the lines before have {kinds[1]}; make two files"
        )
    return own


def _options(record: Mapping[str, object], where: str) -> tuple[str, ...]:
    if "answer" in record:
        return (held_text(record, "answer", where),)
    return held_texts(record, "options", where)


def _line(record: Mapping[str, object], where: str, number: int) -> Line:
    unknown = sorted(record.keys() - set(KEYS))
    if unknown:
        raise ConfigError(f"{where} has the key {unknown[0]!r}; it may have {', '.join(KEYS)}")
    if ("answer" in record) == ("options" in record) or ("options" in record) != (
        "correct" in record
    ):
        raise ConfigError(f"{where} needs either 'answer' or both 'options' and 'correct'")
    text = held_text(record, "document", where)
    options = _options(record, where)
    right = held_text(record, "answer" if "answer" in record else "correct", where)
    return Line(
        id=held_text(record, "id", where) if "id" in record else f"line-{number}",
        group=held_text(record, "group", where) if "group" in record else digest(text)[:12],
        document=text,
        question=held_text(record, "question", where),
        options=options,
        correct=place_of(right, options, where),
    )
