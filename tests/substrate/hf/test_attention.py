"""How the attention is entered, left, and bounded."""

from __future__ import annotations

import pytest
import torch

from kri_core.substrate.hf import HfProbe, attention
from kri_core.substrate.hf.interface import NAME, attending
from kri_core.testing.tiny import random_tokens, tiny_cartridge

READ = ["logits", "block_mass"]


def test_the_models_own_attention_is_back_afterwards(tiny_llama):
    config = tiny_llama.model.config
    before = config._attn_implementation
    with attending(tiny_llama.model, lambda call: call.query):
        assert config._attn_implementation == NAME
    assert config._attn_implementation == before != NAME


def test_the_models_own_attention_is_back_after_an_error(tiny_llama):
    before = tiny_llama.model.config._attn_implementation

    def fail(_call):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), attending(tiny_llama.model, fail):
        tiny_llama.model(torch.tensor([[1, 2]]))
    assert tiny_llama.model.config._attn_implementation == before
    assert tiny_llama.model(torch.tensor([[1, 2]])).logits.isfinite().all()


def test_hooks_on_the_model_are_gone_after_an_error(tiny_llama, tiny_cartridge, monkeypatch):
    def fail(*_args):
        raise ZeroDivisionError

    monkeypatch.setattr(attention, "_scores", fail)
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1)
    with pytest.raises(ZeroDivisionError):
        probe.forward([5], read=["hidden"])
    assert all(not layer._forward_hooks for layer in tiny_llama.anatomy.layers)


def test_transformers_builds_no_mask(tiny_llama):
    masks = []

    def attend(call):
        masks.append(call.mask)
        return call.query

    with torch.no_grad(), attending(tiny_llama.model, attend):
        tiny_llama.model(torch.tensor([random_tokens(9)] * 2), use_cache=False)
    assert masks == [None] * 3


@pytest.mark.parametrize("nbytes", [1, 4_000, 60_000])
def test_steps_of_any_size_give_the_same(case, monkeypatch, nbytes):
    """One token at a time, some tokens of one row, some whole rows."""
    probe = HfProbe(case.model, case.cartridge, texts=(), batch=4)
    whole = probe.forward(case.question, read=READ, visible=case.visible)
    monkeypatch.setattr(attention, "SCORE_BYTES", {"cpu": nbytes})
    parts = probe.forward(case.question, read=READ, visible=case.visible)

    torch.testing.assert_close(parts.logits, whole.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(parts.block_mass, whole.block_mass, atol=1e-5, rtol=0)


def test_steps_cover_every_row_and_token_once():
    query = torch.empty(5, 2, 3, 7, 4)  # [row, kv_head, group, token, head_dim]
    for fit in (1, 3, 7, 15, 1000):
        attention_bytes = fit * 2 * 3 * (9 + 7) * 4
        seen = torch.zeros(5, 7, dtype=torch.int)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "SCORE_BYTES", {"cpu": attention_bytes})
            for row, token in attention._steps(query, past=9):
                seen[row, token] += 1
                assert seen[row, token].numel() <= max(fit, 1)
        assert (seen == 1).all()


def test_the_documents_keys_are_not_copied_per_row(tiny_llama, monkeypatch, largest_tensor):
    """Sixteen rows make no tensor near sixteen times one layer's keys, [2, 400, 8] float32."""
    monkeypatch.setattr(attention, "SCORE_BYTES", {"cpu": 1 << 16})
    probe = HfProbe(tiny_llama, tiny_cartridge(tiny_llama, num_tokens=400), texts=(), batch=16)
    visible = torch.rand(16, 50, generator=torch.Generator().manual_seed(0)) > 0.1
    with largest_tensor() as largest:
        probe.forward([5, 6], read=["hidden"], visible=visible)

    one = 2 * 400 * 8 * 4
    assert one <= largest.nbytes <= 4 * one
