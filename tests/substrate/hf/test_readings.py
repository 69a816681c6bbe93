"""What a probe reads is what the model computes."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from kri_core.errors import EngineError, PluginError
from kri_core.probe import Reading
from kri_core.substrate.hf import HfProbe
from kri_core.testing.tiny import random_tokens

CLOSE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture
def probe(case):
    return HfProbe(case.model, case.cartridge, texts=(), batch=4)


@pytest.fixture
def routed(case, run_eager, mask_of):
    """Row 1's document and question in one eager forward, with everything transformers can show."""
    tokens = [*case.cartridge.token_ids, *case.question]
    mask = mask_of(case.cartridge, len(case.question), case.visible[1])
    return run_eager(case.model, tokens, mask, output_hidden_states=True, output_attentions=True)


def test_hidden_is_the_residual_stream_after_each_layer(case, probe, routed):
    hidden = probe.forward(case.question, read=["hidden"], visible=case.visible).hidden

    layers = len(case.model.anatomy.layers)
    assert hidden.shape == (4, layers, 5, 32)
    for layer in range(layers - 1):  # transformers shows the last one only after the final norm
        expected = routed.hidden_states[layer + 1][0, -5:]
        torch.testing.assert_close(hidden[1, layer], expected, **CLOSE)


def test_the_last_hidden_is_before_the_final_norm(tiny_llama, tiny_cartridge):
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)
    read = probe.forward(random_tokens(5, seed=1), read=["hidden", "logits"])

    with torch.no_grad():
        normed = tiny_llama.model.model.norm(read.hidden[0, -1])
        torch.testing.assert_close(tiny_llama.model.lm_head(normed), read.logits[0], **CLOSE)


def test_block_mass_is_the_sum_of_a_blocks_attention_weights(case, probe, routed):
    mass = probe.forward(case.question, read=["block_mass"], visible=case.visible).block_mass

    weights = torch.stack(routed.attentions)[:, 0, :, -5:]  # [layer, q_head, token, column]
    expected = weights[..., :48].reshape(*weights.shape[:-1], 6, 8).sum(-1)
    torch.testing.assert_close(mass[1], expected, **CLOSE)
    assert (mass[1][..., ~case.visible[1]] == 0).all()
    assert (mass.sum(-1) <= 1 + 1e-6).all()


def test_block_mass_names_blocks_by_their_number_where_few_are_seen(tiny_llama, tiny_cartridge):
    """Rows that see two of six blocks are run over these two alone; the answer says so."""
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=2)
    few = torch.tensor([[0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0]]).bool()

    mass = probe.forward([7, 8], read=["block_mass"], visible=few).block_mass

    assert mass.shape[-1] == 6
    assert (mass[0, ..., few[0]] > 0).all()
    assert (mass[1, ..., 1] > 0).all()
    assert (mass[0, ..., ~few[0]] == 0).all()
    assert (mass[1, ..., ~few[1]] == 0).all()


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def test_pre_rope_queries_are_the_projections_own(family, request):
    """q_proj, and q_norm where there is one, before any rotation; hooked by hand."""
    from kri_core.testing.tiny import tiny_cartridge

    model = request.getfixturevalue(family)
    probe = HfProbe(model, tiny_cartridge(model), texts=(), batch=1)
    attention = [layer.self_attn for layer in model.anatomy.layers]
    seen: list[torch.Tensor] = []

    def keep(_module, _inputs, output):
        seen.append(output.view(5, 4, 8).transpose(0, 1))  # [q_head, token, head_dim]

    hooks = [getattr(part, "q_norm", part.q_proj).register_forward_hook(keep) for part in attention]
    read = probe.forward(random_tokens(5, seed=1), read=["pre_rope_queries"])
    for hook in hooks:
        hook.remove()

    torch.testing.assert_close(read.pre_rope_queries[0], torch.stack(seen), **CLOSE)


def test_post_rope_queries_are_pre_rope_ones_turned(case, probe):
    """The model's own rotation brings one to the other, YaRN's scaling included."""
    import sys

    read = probe.forward(case.question, read=["queries", "pre_rope_queries"])
    rotary = case.model.anatomy.rotary
    cos, sin = rotary.embedding(torch.empty(0), torch.arange(50, 55)[None])
    rotate = sys.modules[type(rotary.attention).__module__].apply_rotary_pos_emb
    for plain, turned in zip(read.pre_rope_queries[0], read.queries[0], strict=True):
        part = plain[None, ..., : cos.shape[-1]]
        expected, _ = rotate(part, part, cos, sin)
        torch.testing.assert_close(turned[..., : cos.shape[-1]], expected[0], **CLOSE)
        assert torch.equal(turned[..., cos.shape[-1] :], plain[..., cos.shape[-1] :])
    assert (read.queries - read.pre_rope_queries).abs().max() > 1e-2


def test_the_attention_that_queries_give_is_the_one_observed(tiny_llama, tiny_cartridge):
    """softmax(q·k) by hand, from the queries read and the cartridge's keys."""
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)
    read = probe.forward([7], read=["queries", "block_mass"])

    keys = tiny_cartridge.keys().repeat_interleave(2, 1)  # [layer, q_head, token, head_dim]
    logits = (read.queries[0] @ keys.mT)[:, :, 0] / 8**0.5
    odds = logits.exp().reshape(3, 4, 6, 8).sum(-1)
    mass = read.block_mass[0, :, :, 0]
    torch.testing.assert_close(mass / mass.sum(-1, keepdim=True), odds / odds.sum(-1, keepdim=True))


def test_head_outputs_through_the_projection_are_the_attention_modules_own(case, probe):
    """o_proj hooked by hand, its bias taken off."""
    kind = type(case.model.anatomy.rotary.attention)
    linear = [
        getattr(part, "o_proj", None) or part.dense
        for part in case.model.model.modules()
        if isinstance(part, kind)
    ]
    seen = []
    hooks = [each.register_forward_hook(lambda *args: seen.append(args[2])) for each in linear]
    read = probe.forward(case.question, read=["head_outputs", "scaling"], visible=case.visible)
    for hook in hooks:
        hook.remove()

    assert read.scaling.shape == (4, len(linear))
    assert read.scaling.eq(
        linear[0].in_features ** -0.5 * case.model.anatomy.num_q_heads**0.5
    ).all()
    for layer, (each, wanted) in enumerate(zip(linear, seen, strict=True)):
        bias = 0 if each.bias is None else each.bias
        heads = read.head_outputs[:, layer] @ probe.output_projection(layer)
        torch.testing.assert_close(heads.sum(1) + bias, wanted, **CLOSE)


def test_an_unknown_output_projection_is_refused(tiny_llama, tiny_cartridge, monkeypatch):
    monkeypatch.setattr("kri_core.substrate.hf.projection.NAMES", ("c_proj",))
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)

    with pytest.raises(EngineError, match="LlamaAttention has no linear output projection of 32"):
        probe.output_projection(0)


def test_last_limits_everything_read(tiny_llama, tiny_cartridge):
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)
    names = ["hidden", "logits", "queries", "pre_rope_queries", "block_mass", "head_outputs"]
    token_axis = {"hidden": 2, "logits": 1}

    whole = probe.forward([5, 6, 7, 8], read=names)
    last = probe.forward([5, 6, 7, 8], read=names, last=2)
    more = probe.forward([5, 6, 7, 8], read=names, last=9)

    for name in names:
        full = getattr(whole, name)
        axis = token_axis.get(name, 3)
        expected = full.narrow(axis, 2, 2)
        torch.testing.assert_close(getattr(last, name), expected, **CLOSE)
        assert getattr(more, name).shape == full.shape


def test_only_what_is_asked_for_is_read(tiny_llama, tiny_cartridge):
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)
    read = probe.forward([5, 6], read=["hidden"])

    assert (read.logits, read.queries, read.pre_rope_queries, read.block_mass) == (None,) * 4


def test_every_reading_is_float32_on_the_cpu_from_a_bfloat16_model():
    from kri_core.testing.tiny import tiny, tiny_cartridge

    model = tiny("Llama", dtype=torch.bfloat16)
    probe = HfProbe(model, tiny_cartridge(model), texts=(), batch=1)
    names = get_args(Reading)
    read = probe.forward([5, 6], read=names)
    for name in names:
        assert getattr(read, name).dtype == torch.float32
        assert getattr(read, name).device.type == "cpu"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"token_ids": []}, r"probe\.forward needs at least one token"),
        (
            {"read": ["hidden", "gradients"]},
            r"probe\.forward cannot read gradients; it reads hidden, logits, queries",
        ),
        ({"last": 0}, r"last must be at least 1 token; got 0"),
        ({"removal": "zero"}, r"removal 'zero' is not known; give mask or reprefill"),
        (
            {"visible": torch.ones(2, 5, dtype=torch.bool)},
            r"visible must be bool \[row, block\] of 6 blocks; got torch\.bool \[2, 5\]",
        ),
        (
            {"visible": torch.ones(2, 6)},
            r"visible must be bool \[row, block\] of 6 blocks; got torch\.float32 \[2, 6\]",
        ),
    ],
)
def test_a_scorer_that_asks_wrongly_is_told_what_to_ask(tiny_llama, tiny_cartridge, asked, message):
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)
    with pytest.raises(PluginError, match=message):
        probe.forward(**{"token_ids": [5], "read": ["hidden"]} | asked)
