"""fidelity FILE: how close a stack stays to the dense model on any text, without labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen
from attrs.validators import ge

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.assembling import opening
from kri_core.evaluation.tasks.contract import Document, Task, Tokenizer
from kri_core.evaluation.tasks.files import read_text
from kri_core.evaluation.tasks.items import Agreement
from kri_core.evaluation.tasks.needle import GENERIC


@frozen
class Fidelity(Task):
    """Windows of a text: `tokens` as the document, the next `compared` to compare on.

    path: any UTF-8 text. The same number of tokens is drafted for the acceptance length.
    """

    path: str
    tokens: int = field(default=2048, validator=ge(1))
    compared: int = field(default=64, validator=ge(1))

    def documents(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """One per whole window, none of which overlap; each window is a group."""
        first, text = opening(tokenizer), tuple(tokenizer.encode(read_text(Path(self.path))))
        inner = self.tokens - len(first)
        window = inner + 1 + self.compared
        if inner < 1 or len(text) < window:
            raise ConfigError(
                f"{self.path} has {len(text)} tokens and one window of {self.tokens} takes "
                f"{max(window, 1)}, {len(first)} of the {self.tokens} being the prompt's opening; "
                "give a longer text or other tokens"
            )
        for index in range(len(text) // window):
            name, start = f"{index:03}", index * window + inner
            follows = text[start : start + 1 + self.compared]
            item = Agreement(f"{name}/text", follows[:1], follows[1:], self.compared, text="")
            yield Document(name, name, (*first, *text[start - inner : start]), (item,), (GENERIC,))
