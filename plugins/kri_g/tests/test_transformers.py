"""Both scorers through a real model class, and what ties them to each other there."""

import pytest
import torch
from kri_plugin_g import first_order, gate, gradient, targets

from kri_core import ProbeText

transformers = pytest.importorskip("transformers")

from kri_core.substrate.hf import HfProbe, answer  # noqa: E402 - they need transformers
from kri_core.testing.tiny import tiny, tiny_cartridge  # noqa: E402

TEXTS = (ProbeText("a", (65, 9, 200, 7, 11)), ProbeText("b", (3, 80)))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
KINDS = {
    "grouped queries": ("Llama", {}),
    "norms on queries and keys": ("Qwen3", {}),
    "one KV head": ("Llama", {"num_key_value_heads": 1}),
    "a KV head per query head": ("Llama", {"num_key_value_heads": 4}),
    "yarn": ("Llama", {"num_key_value_heads": 4, "rope_scaling": YARN}),
    "partial rotary": ("Phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
}


def made(family, **overrides):
    """Six blocks of 4 and a tail of 2."""
    model = tiny(family, **overrides)
    return model, tiny_cartridge(model, num_tokens=26, block_size=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scorer", [gradient, gate])
def test_every_kind_of_model_is_scored_the_same_twice(kind, scorer):
    family, overrides = KINDS[kind]
    model, cartridge = made(family, **overrides)
    first, again = (
        scorer.kri_score_blocks(cartridge, HfProbe(model, cartridge, TEXTS, 4), scorer.Params())
        for _ in range(2)
    )

    assert first.shape == (3, cartridge.layout.num_kv_heads, 6)
    assert (first > 0).any()
    assert first.equal(again)


@pytest.mark.parametrize("kind", ["a KV head per query head", "yarn", "partial rotary"])
def test_one_query_ties_the_gate_to_the_keys_gradient(kind):
    """Of one query q, Σ ∂ℒ/∂K = s·q·a⟨g, oᵦ − o⟩ with s the logits' scaling, so ΔL = −⟨…⟩/(1−a)."""
    family, overrides = KINDS[kind]
    model, cartridge = made(family, **overrides)
    probe = HfProbe(model, cartridge, TEXTS, 4)
    read = probe.forward([65], read=["queries", "block_mass", "scaling"])
    queries, mass = read.queries[0, :, :, 0], read.block_mass[0, :, :, 0]  # [layer, q_head, …]
    scaled = queries * read.scaling[0, 0]
    sums = probe.gradients([65], [9]).key_sums  # [layer, kv_head, block, head_dim]
    along = (sums * scaled[:, :, None]).sum(-1) / scaled.square().sum(-1, keepdim=True)
    changes = first_order.measure(cartridge, probe, [65], [9])[first_order.CHANGE]

    wanted = -along / (1 - mass)
    assert wanted.abs().max() > 1e-4
    torch.testing.assert_close(changes, wanted, rtol=1e-3, atol=1e-6)


def test_the_continuation_is_the_dense_answer():
    model, cartridge = made("Llama")
    probe = HfProbe(model, cartridge, TEXTS, 4)
    for text in TEXTS:
        dense = answer(model, cartridge, range(6), text.token_ids, 16)
        said = targets.continuation(probe, text)
        assert tuple(said[: len(dense.token_ids)]) == dense.token_ids


def test_the_second_scorer_runs_nothing():
    model, cartridge = made("Llama")
    batches = []
    probe = HfProbe(model, cartridge, TEXTS, 4, progress=lambda *batch: batches.append(batch))
    gradient.kri_score_blocks(cartridge, probe, gradient.Params())
    assert [done for _, done, _ in batches] == [2, 2]
    gate.kri_score_blocks(cartridge, probe, gate.Params(sign="absolute"))
    assert len(batches) == 2
