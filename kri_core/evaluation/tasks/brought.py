"""Questions that come in a file, about documents that are taken as they are."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.assembling import opening
from kri_core.evaluation.tasks.contract import Document, Item, Task, Tokenizer
from kri_core.evaluation.tasks.needle import GENERIC

TEMPLATE = "\n\nQuestion: {question}\nAnswer:"


def _check_template(_task: object, _attribute: object, template: str) -> None:
    if template.count("{question}") != 1:
        raise ConfigError(
            f"the template {template[:40]!r} needs {{question}} once; write where the question goes"
        )


@frozen
class FromFile(Task):
    """A task that reads a data file.

    path: the file. template: the prompt around a question; an answer follows it after a space.
    """

    path: str
    template: str = field(default=TEMPLATE, validator=_check_template)

    def prompt(self, tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
        """A question's tokens."""
        return tuple(tokenizer.encode(self.template.replace("{question}", question.strip())))


def answer_ids(tokenizer: Tokenizer, answer: str) -> tuple[int, ...]:
    """An answer's tokens as they follow a prompt."""
    return tuple(tokenizer.encode(f" {answer.strip()}"))


def document(
    tokenizer: Tokenizer, name: str, group: str, text: Sequence[int], items: tuple[Item, ...]
) -> Document:
    """A document in an open user's turn; nothing is known that would make a domain probe."""
    return Document(name, group, (*opening(tokenizer), *text), items, (GENERIC,))
