"""The shipped document, and questions that SmolLM2-135M answers from all of it."""

from __future__ import annotations

import json
from importlib.resources import files

from attrs import frozen

PROBES = (  # what the priors are baked with: none of them is a question that the demo asks
    "Who designed the machine?",
    "At what pressure does the safety valve open?",
    "How long is the guarantee?",
    "What does fault E2 mean?",
)


@frozen
class Question:
    """A question about the document and the words that its answer must contain."""

    question: str
    answer: str

    @property
    def prompt(self) -> str:
        """The question as text to be continued."""
        return prompt(self.question)


def prompt(question: str) -> str:
    """The form in which a base or small instruct model continues with the answer."""
    return f"\n\nQuestion: {question}\nAnswer:"


def document() -> str:
    """The service manual of an espresso machine that does not exist."""
    return (files(__name__) / "service-manual.txt").read_text(encoding="utf-8")


def questions() -> tuple[Question, ...]:
    """The demo's question first."""
    lines = (files(__name__) / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Question(**json.loads(line)) for line in lines)
