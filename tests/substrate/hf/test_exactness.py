"""Models that routing is not exact for are refused by name."""

from __future__ import annotations

import pytest
import torch
import transformers

from kri_core.errors import EngineError
from kri_core.substrate.hf import HfModel
from kri_core.substrate.hf.exactness import check_config
from kri_core.testing.tiny import tiny_transformers

LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 128,
}
LINEAR = ["linear_attention", "full_attention"] * 16
REFUSED = [
    ("GPT2", {}, "GPT2LMHeadModel", r"it has no rotary position embedding \(RoPE\)"),
    ("Bloom", {}, "BloomForCausalLM", r"it has no rotary position embedding \(RoPE\)"),
    ("Falcon", {"alibi": True}, "Falcon", "it has ALiBi instead of RoPE"),
    ("Falcon", {}, "FalconForCausalLM", "does not go through transformers' AttentionInterface"),
    ("Mistral", {"sliding_window": 64}, "Mistral", "through a sliding window of 64 tokens"),
    (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        "Qwen2",
        "it has layers of sliding_attention",
    ),
    ("Gemma2", {}, "Gemma2", "it has layers of sliding_attention"),
    ("Llama", {"rope_scaling": LONGROPE}, "Llama", r"its RoPE \(longrope\) changes with the"),
    ("SmolLM3", {"no_rope_layers": [1, 0, 1]}, "SmolLM3ForCausalLM", "its layer 1 has no RoPE"),
]


@pytest.mark.parametrize(("family", "overrides", "name", "why"), REFUSED)
def test_refused_by_name(family, overrides, name, why):
    with pytest.raises(
        EngineError, match=rf"^{name}\w* cannot be routed exactly: .*{why}.*; use a decoder-only"
    ):
        HfModel.from_parts(_make(family, overrides))


def _make(family, overrides):
    if family == "GPT2":
        config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=64)
        return transformers.GPT2LMHeadModel(config)
    if family == "Falcon":
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
        config = transformers.FalconConfig(vocab_size=64, **sizes, **overrides)
        return transformers.FalconForCausalLM(config)
    return tiny_transformers(family, **overrides)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (transformers.T5Config(), "it is an encoder-decoder"),
        (transformers.DeepseekV3Config(), r"it has multi-head latent attention \(MLA\)"),
        (transformers.MiniMaxConfig(layer_types=LINEAR), "it has layers of linear_attention"),
        (transformers.Llama4TextConfig(), "it has layers of chunked_attention"),
        (transformers.GptOssConfig(), "it has layers of sliding_attention"),
    ],
)
def test_a_config_is_enough_to_refuse(config, why):
    """Before any weights are read."""
    with pytest.raises(EngineError, match=why):
        check_config(config)


def test_an_attention_that_asks_for_more_than_softmax_is_refused(monkeypatch):
    """Gemma 2 with full attention everywhere still caps its logits."""
    model = tiny_transformers("Gemma2", layer_types=["full_attention"] * 3, query_pre_attn_scalar=8)
    model.config.sliding_window = None
    with pytest.raises(
        EngineError, match=r"Gemma2ForCausalLM .* its attention asks for softcap=50"
    ):
        HfModel.from_parts(model)


def test_a_model_that_adds_learned_positions_is_refused():
    """RoPE must be all that positions do to the queries."""
    model = tiny_transformers("Llama")

    def forward(*, position_ids, **kwargs):
        embedded = model.model.embed_tokens(kwargs.pop("input_ids"))
        moved = embedded + position_ids[..., None] * 0.1
        return plain(inputs_embeds=moved, position_ids=position_ids, **kwargs)

    plain = model.model.forward
    model.model.forward = forward
    with pytest.raises(EngineError, match="uses positions in another way than RoPE alone"):
        HfModel.from_parts(model)


def test_a_model_whose_layers_do_not_all_attend_is_refused():
    """A layer without attention keeps something else of the document."""
    model = tiny_transformers("Llama")

    class Recurrent(torch.nn.Module):
        def forward(self, hidden_states, **_options):
            return hidden_states, None

    model.model.layers[1].self_attn = Recurrent()
    with pytest.raises(EngineError, match=r"not each of its layers attends \(2 do\)"):
        HfModel.from_parts(model)


def test_keys_and_values_of_different_shapes_are_refused():
    """What latent attention shows where the config does not tell."""
    model = tiny_transformers("Llama")
    model.model.layers[1].self_attn.v_proj = torch.nn.Linear(32, 32)
    with pytest.raises(EngineError, match=r"its keys and values differ in shape \(MLA\)"):
        HfModel.from_parts(model)


def test_layers_with_different_heads_are_refused():
    model, other = tiny_transformers("Llama"), tiny_transformers("Llama", num_key_value_heads=4)
    model.model.layers[1].self_attn = other.model.layers[1].self_attn
    other.model.layers[1].self_attn.config = model.config  # where the attention is looked up
    with pytest.raises(EngineError, match="its layers differ in their numbers of heads"):
        HfModel.from_parts(model)


def test_a_window_that_is_switched_off_does_not_count():
    check_config(transformers.Qwen2Config(use_sliding_window=False, sliding_window=4096))
    check_config(transformers.MistralConfig(sliding_window=None))


@pytest.mark.parametrize("family", ["Mistral", "Gemma", "Olmo2", "Granite", "GPTNeoX", "Glm"])
def test_other_families_with_rope_and_full_attention_are_taken(family):
    overrides = {"sliding_window": None} if family == "Mistral" else {}
    model = HfModel.from_parts(tiny_transformers(family, **overrides))
    assert len(model.anatomy.layers) == 3
