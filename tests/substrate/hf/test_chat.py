"""Which tokens a document and a question become."""

from __future__ import annotations

import pytest

from kri_core.errors import ConfigError, EngineError
from kri_core.substrate.hf import HfModel, document_ids, question_ids
from kri_core.testing.tiny import tiny_tokenizer


def text(model, ids):
    return model.tokenizer.decode(ids)


def with_template(model, template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return HfModel.from_parts(model.model, tokenizer, model_id="templated")


def test_plain_document_and_question(tiny_llama):
    assert text(tiny_llama, document_ids(tiny_llama, "doc")) == "<s>doc"
    assert text(tiny_llama, question_ids(tiny_llama, " why?")) == " why?"


def test_a_question_from_a_command_line_without_utf8(tiny_llama):
    """There Python hides the bytes of what was typed in surrogates."""
    typed = "wärum?".encode().decode("ascii", errors="surrogateescape")
    assert question_ids(tiny_llama, typed) == question_ids(tiny_llama, "wärum?")


@pytest.mark.parametrize("text", [b"caf\xe9".decode(errors="surrogateescape"), "\ud800"])
def test_a_question_that_is_no_utf8(tiny_llama, text):
    with pytest.raises(ConfigError, match="is not UTF-8; give it in UTF-8"):
        question_ids(tiny_llama, text)


def test_a_special_token_the_tokenizer_puts_last_is_left_out(tiny_llama):
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    model = HfModel.from_parts(tiny_llama.model, tokenizer)
    assert text(model, document_ids(model, "doc")) == "<s>doc"


def test_document_and_question_are_one_user_turn(tiny_llama):
    document = document_ids(tiny_llama, "doc", chat_template=True)
    question = question_ids(tiny_llama, "why?", document, chat_template=True)

    assert text(tiny_llama, document) == "<s><|user|>doc"
    assert text(tiny_llama, question) == "\n\nwhy?<|end|><|assistant|>"


def test_a_question_after_a_plain_document_is_a_turn_of_its_own(tiny_llama):
    document = document_ids(tiny_llama, "doc")
    question = question_ids(tiny_llama, "why?", document, chat_template=True)

    assert text(tiny_llama, question) == "<|user|>why?<|end|><|assistant|>"


def test_a_document_keeps_the_spaces_a_template_would_trim(tiny_llama):
    document = document_ids(tiny_llama, "  doc\n", chat_template=True)
    assert text(tiny_llama, document) == "<s><|user|>  doc\n"


def test_a_document_may_speak_of_the_place_it_takes(tiny_llama):
    document = document_ids(tiny_llama, "[[the document]]", chat_template=True)
    question = question_ids(tiny_llama, "[[the document]]?", document, chat_template=True)

    assert text(tiny_llama, document) == "<s><|user|>[[the document]]"
    assert text(tiny_llama, question) == "\n\n[[the document]]?<|end|><|assistant|>"


@pytest.mark.parametrize("today", ["strftime_now('%d %b %Y')", "date_string"])
def test_a_template_that_prints_the_date_gives_the_same_ids_every_day(tiny_llama, today):
    model = with_template(
        tiny_llama, "<s>{{ " + today + " }}<|user|>{{ messages[0].content }}<|end|>"
    )
    document = document_ids(model, "doc", chat_template=True)

    assert text(model, document) == "<s>26 Jul 2024<|user|>doc"


def test_a_model_without_a_template(tiny_llama):
    model = with_template(tiny_llama, None)
    with pytest.raises(ConfigError, match="templated has no chat template; leave out --chat-t"):
        document_ids(model, "doc", chat_template=True)


def test_a_template_that_refuses_a_lone_user(tiny_llama):
    model = with_template(tiny_llama, "{{ raise_exception('a system turn must come first') }}")
    with pytest.raises(
        EngineError,
        match="the chat template of templated takes no lone user turn: a system turn must come",
    ):
        question_ids(model, "why?", (), chat_template=True)


def test_a_model_without_a_tokenizer(tiny_llama):
    model = HfModel.from_parts(tiny_llama.model)
    with pytest.raises(EngineError, match="in memory was given without a tokenizer; give token"):
        document_ids(model, "doc")
