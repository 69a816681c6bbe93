"""One model has one identity, in every dtype and release of transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from attrs import evolve

from kri_core.errors import ArtifactError
from kri_core.substrate.hf import HfModel, HfProbe, answer
from kri_core.substrate.hf.identity import rope_of, tokenizer_digest, weights_digest
from kri_core.testing.tiny import tiny, tiny_cartridge, tiny_tokenizer, tiny_transformers


def config(**values):
    return SimpleNamespace(max_position_embeddings=4096, **values)


YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SAME_ROPE = [  # as transformers 4 keeps it, as 5 does, and the text of both
    (
        {"rope_theta": 10000, "rope_scaling": None},
        {"rope_theta": 10000.0, "rope_type": "default"},
        {"rope_theta": 10000.0, "rope_type": "default"},
    ),
    (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 5e5, "rope_type": "linear", "type": "linear", "factor": 2.0},
        {"factor": 2.0, "rope_theta": 5e5, "rope_type": "linear"},
    ),
    (
        {"rope_theta": 1e4, "rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": None}},
        YARN | {"rope_theta": 1e4, "rope_type": "yarn"},
        YARN | {"original_max_position_embeddings": 1024.0, "rope_theta": 1e4, "rope_type": "yarn"},
    ),
    (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"rope_type": "llama3"}},
        LLAMA3
        | {"rope_theta": 5e5, "rope_type": "llama3", "original_max_position_embeddings": 4096},
        LLAMA3
        | {"rope_theta": 5e5, "rope_type": "llama3", "original_max_position_embeddings": 4096.0},
    ),
    (
        {"rope_theta": 1e4, "rope_scaling": None, "partial_rotary_factor": 0.5},
        {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
        {"partial_rotary_factor": 0.5, "rope_theta": 1e4, "rope_type": "default"},
    ),
    (
        {"rope_theta": 1e4, "rope_scaling": None},
        {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 1.0},
        {"rope_theta": 1e4, "rope_type": "default"},
    ),
]


@pytest.mark.parametrize(("four", "five", "text"), SAME_ROPE)
def test_rope_reads_the_same_from_both_forms_of_config(four, five, text):
    assert json.loads(rope_of(config(**four))) == text
    assert rope_of(config(**four)) == rope_of(config(rope_parameters=five))


def test_rope_scalings_differ():
    texts = {rope_of(config(**four)) for four, _, _ in SAME_ROPE[:5]}
    assert len(texts) == 5


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_a_cast_keeps_the_fingerprint(family):
    one, *others = (
        tiny(family, dtype=dtype).identity
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    )
    assert [other.fingerprint for other in others] == [one.fingerprint] * 2


def test_families_differ(tiny_llama, tiny_qwen2, tiny_qwen3):
    models = (tiny_llama, tiny_qwen2, tiny_qwen3)
    assert len({model.identity.fingerprint for model in models}) == 3
    assert tiny_llama.identity.mismatch(tiny_qwen2.identity) == "architecture"


def test_other_rope_is_named(tiny_llama):
    other = tiny("Llama", rope_theta=5000.0)
    assert tiny_llama.identity.mismatch(other.identity) == "rope"


def test_other_weights_are_named(tiny_llama):
    other = tiny_transformers("Llama")
    weight = other.model.layers[1].mlp.up_proj.weight
    weight.data[:2] = -weight.data[:2]
    changed = HfModel.from_parts(other, tiny_llama.tokenizer)
    assert tiny_llama.identity.mismatch(changed.identity) == "weights"


def test_another_tokenizer_is_named(tiny_llama):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["new"])
    other = HfModel.from_parts(tiny_llama.model, tokenizer)
    assert tiny_llama.identity.mismatch(other.identity) == "tokenizer"


def test_chat_template_and_padding_do_not_name_a_tokenizer():
    plain, other = tiny_tokenizer(), tiny_tokenizer()
    other.chat_template = "{{ messages[0].content }}"
    other.pad_token = "</s>"
    assert tokenizer_digest(plain) == tokenizer_digest(other)


def test_another_first_token_names_a_tokenizer():
    plain, other = tiny_tokenizer(), tiny_tokenizer()
    other.bos_token = "<|user|>"
    assert tokenizer_digest(plain) != tokenizer_digest(other)


def test_tied_weights_count_once():
    tied = tiny_transformers("Llama", tie_word_embeddings=True)
    names = [name for name, _ in tied.named_parameters()]
    assert "lm_head.weight" not in names

    before = weights_digest(tied)
    tied.lm_head.weight = torch.nn.Parameter(tied.lm_head.weight.detach().clone())
    assert weights_digest(tied) != before


def test_quantised_weights_count_by_value():
    """Integers have no sign bits to speak of."""
    part = torch.nn.Module()
    part.codes = torch.nn.Parameter(torch.arange(8, dtype=torch.uint8), requires_grad=False)
    before = weights_digest(part)
    part.codes.data[3] = 9
    assert weights_digest(part) != before


def test_another_process_gives_the_same_identity(tiny_llama):
    """Whatever the hash seed (CASES 13)."""
    code = "from kri_core.testing.tiny import tiny_llama; print(tiny_llama().identity)"
    seed = {"PYTHONHASHSEED": str(int(os.environ.get("PYTHONHASHSEED") == "0"))}
    other = subprocess.check_output([sys.executable, "-c", code], env=os.environ | seed, text=True)
    assert other.strip() == str(tiny_llama.identity)


@pytest.mark.parametrize("field", ["architecture", "rope", "weights", "tokenizer"])
def test_a_cartridge_of_another_model_is_refused_by_the_fields_name(
    tiny_llama, tiny_cartridge, field
):
    other = evolve(tiny_cartridge, model=evolve(tiny_cartridge.model, **{field: "other"}))
    with pytest.raises(ArtifactError, match=f"cartridge 'tiny' was made with {field} other"):
        HfProbe(tiny_llama, other, texts=(), batch=1)
    with pytest.raises(ArtifactError, match=f"cartridge 'tiny' was made with {field} other"):
        answer(tiny_llama, other, [0], [5], 1)


def test_a_foreign_cartridge_that_does_not_fit_is_refused(tiny_llama):
    """One that does not know its model still has its sizes."""
    from kri_core.identity import ModelIdentity

    wide = tiny_cartridge(tiny("Llama", num_key_value_heads=4))
    foreign = evolve(wide, model=ModelIdentity("unknown"))
    with pytest.raises(
        ArtifactError,
        match=r"has \(layers, KV heads, head_dim\) \(3, 4, 8\), but tiny-llama has \(3, 2, 8\)",
    ):
        answer(tiny_llama, foreign, [0], [5], 1)
