"""The shipped document is long, and its questions have answers."""

from __future__ import annotations

from copy import deepcopy

import pytest

from kri_core.demo import PROBES, document, questions
from kri_core.models import get_model


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(get_model("smollm2-135m"))


@pytest.fixture(scope="module")
def dense(tokenizer):
    """The model, and the document's cache without a block left out."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(get_model("smollm2-135m"), dtype="auto")
    ids = torch.tensor([tokenizer(document()).input_ids])
    with torch.no_grad():
        return model, ids, model.model(ids, use_cache=True).past_key_values


def test_every_answer_is_in_the_document_once():
    assert [document().count(question.answer) for question in questions()] == [1, 1, 1]


def test_a_question_is_put_as_text_to_be_continued():
    assert questions()[0].prompt == (
        "\n\nQuestion: Who is the head of the service department?\nAnswer:"
    )


def test_no_probe_is_a_question_that_is_asked():
    assert not {question.question for question in questions()} & set(PROBES)


@pytest.mark.model
def test_the_document_has_over_2500_tokens_and_an_incomplete_last_block(tokenizer):
    assert len(tokenizer(document()).input_ids) == 2786  # 174 blocks of 16 and 2 tokens


@pytest.mark.model
@pytest.mark.parametrize("question", questions(), ids=lambda question: question.answer)
def test_the_model_answers_right_when_it_sees_everything(dense, tokenizer, question):
    import torch

    model, document_ids, cache = dense
    asked = torch.cat([document_ids, torch.tensor([tokenizer(question.prompt).input_ids])], 1)

    told = model.generate(
        asked, past_key_values=deepcopy(cache), max_new_tokens=16, do_sample=False
    )

    assert question.answer in tokenizer.decode(told[0, asked.shape[1] :])
