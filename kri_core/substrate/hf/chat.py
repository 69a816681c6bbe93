"""Token ids of documents and questions, with or without the model's chat template.

With the template a document opens the first user turn and leaves it open; a question that follows
is the rest of that turn, its end and the start of the assistant's. Whether a cartridge's turn is
open is read off its first tokens. After a cartridge of plain text the question is a conversation of
its own, without the special tokens that start a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from kri_core.errors import ConfigError, EngineError
from kri_core.substrate.hf.model import HfModel

HERE = "[[the document]]"  # stands for it while the template is rendered
BETWEEN = "\n\n"  # from the document to the question in one turn
DATE = "26 Jul 2024"  # Llama 3's own fallback; a template that prints today's date prints this
FIXED_DATE = "{% macro strftime_now(format) %}" + DATE + "{% endmacro %}"


def document_ids(model: HfModel, text: str, chat_template: bool = False) -> tuple[int, ...]:
    """A document's token ids, after what the tokenizer or the template puts first."""
    opening = _opening(model) if chat_template else _leading(_tokenizer(model))
    return opening + encode(model, text)


def question_ids(
    model: HfModel, question: str, document: Sequence[int] = (), chat_template: bool = False
) -> tuple[int, ...]:
    """A question's token ids as they follow a document's; no special token without a template."""
    if not chat_template:
        return encode(model, question)
    opening = _opening(model)
    if tuple(document[: len(opening)]) == opening:
        return encode(model, _render(model, HERE + BETWEEN + question).split(HERE, 1)[1])
    turn, leading = encode(model, _render(model, question)), _leading(model.tokenizer)
    return turn[len(leading) :] if turn[: len(leading)] == leading else turn


def encode(model: HfModel, text: str) -> tuple[int, ...]:
    """A text's token ids and nothing around them."""
    return encode_with(_tokenizer(model), text)


def encode_with(tokenizer: Any, text: str) -> tuple[int, ...]:  # noqa: ANN401
    """The same for a tokenizer without a model.

    A command line's text comes with its bytes hidden in surrogates where the locale is not UTF-8.
    """
    try:
        text = text.encode(errors="surrogateescape").decode()
    except UnicodeError as error:
        raise ConfigError(f"{text[:40]!r} is not UTF-8; give it in UTF-8") from error
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def _opening(model: HfModel) -> tuple[int, ...]:
    """What the template puts before the first user's words."""
    return encode(model, _render(model, HERE).split(HERE, 1)[0])


def _leading(tokenizer: Any) -> tuple[int, ...]:  # noqa: ANN401 - transformers is untyped
    """The special tokens that the tokenizer puts before a text."""
    text, whole = tokenizer("a", add_special_tokens=False).input_ids, tokenizer("a").input_ids
    return tuple(whole[: whole.index(text[0])])


def _render(model: HfModel, words: str) -> str:
    """A user's turn and the start of the assistant's, the same on every day."""
    tokenizer = _tokenizer(model)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{model.identity.model_id} has no chat template; leave out --chat-template"
        )
    try:
        return tokenizer.apply_chat_template(  # type: ignore[no-any-return]
            [{"role": "user", "content": words}],
            chat_template=FIXED_DATE + tokenizer.get_chat_template(),
            date_string=DATE,
            tokenize=False,
            add_generation_prompt=True,
        )
    except TemplateError as error:
        raise EngineError(
            f"the chat template of {model.identity.model_id} takes no lone user turn: {error}; "
            "leave out --chat-template"
        ) from error


def _tokenizer(model: HfModel) -> Any:  # noqa: ANN401
    if model.tokenizer is None:
        raise EngineError(
            f"{model.identity.model_id} was given without a tokenizer; give token ids, or a model "
            "directory that has one"
        )
    return model.tokenizer
