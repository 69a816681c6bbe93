"""The document's own attention, chunk by chunk."""

from __future__ import annotations

import pytest
import torch

from kri_core.substrate.hf import HfProbe, attention
from kri_core.substrate.hf import probe as probe_module
from kri_core.testing.tiny import tiny_cartridge

CLOSE = {"atol": 1e-5, "rtol": 0}


def observed(model, cartridge):
    """Masses [layer, q_head, token, block] and queries [layer, q_head, token, head_dim]."""
    chunks = []
    HfProbe(model, cartridge, texts=(), batch=1).prefill(chunks.append)
    by_layer = [[c for c in chunks if c.layer == layer] for layer in range(3)]
    assert all(c == sorted(c, key=lambda chunk: chunk.first_token) for c in by_layer)
    masses = [torch.cat([c.block_mass for c in layer], 1) for layer in by_layer]
    queries = [torch.cat([c.queries for c in layer], 1) for layer in by_layer]
    return torch.stack(masses), torch.stack(queries)


@pytest.fixture(params=[8, 16, 256], ids=lambda tokens: f"chunks of {tokens}")
def chunked(request, monkeypatch):
    monkeypatch.setattr(probe_module, "PREFILL_TOKENS", request.param)


@pytest.mark.usefixtures("chunked")
def test_block_masses_are_dense_eager_attention_summed(case, run_eager):
    """CASES 23: the model itself runs an attention that returns no weights."""
    assert case.model.model.config._attn_implementation == "sdpa"
    masses, _ = observed(case.model, case.cartridge)

    causal = torch.full((50, 50), torch.finfo(torch.float32).min).triu(1)[None, None]
    dense = run_eager(case.model, case.cartridge.token_ids, causal, output_attentions=True)
    weights = torch.stack(dense.attentions)[:, 0]  # [layer, q_head, token, key token]
    expected = weights[..., :48].reshape(3, 4, 50, 6, 8).sum(-1)
    torch.testing.assert_close(masses, expected, **CLOSE)
    assert (masses[:, :, :48].sum(-1) - 1).abs().max() < 1e-5  # no tail seen yet


def test_queries_and_keys_give_the_masses(tiny_llama, tiny_cartridge):
    """Post-RoPE queries against the cartridge's keys, causally, by hand."""
    masses, queries = observed(tiny_llama, tiny_cartridge)

    keys = torch.cat([tiny_cartridge.keys(), tiny_cartridge.tail[:, 0]], 2)
    logits = queries @ keys.repeat_interleave(2, 1).mT / 8**0.5
    later = torch.ones(50, 50, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(later, -torch.inf).softmax(-1)
    expected = weights[..., :48].reshape(3, 4, 50, 6, 8).sum(-1)
    torch.testing.assert_close(masses, expected, **CLOSE)


def test_a_document_shorter_than_a_block_has_no_masses(tiny_llama):
    masses, queries = observed(tiny_llama, tiny_cartridge(tiny_llama, num_tokens=5))

    assert masses.shape == (3, 4, 5, 0)
    assert queries.shape == (3, 4, 5, 8)


def test_no_token_by_token_tensor_is_ever_made(monkeypatch, largest_tensor):
    """2 048 tokens in 4 heads: one layer's weights would take 67 MB; a chunk may take 1."""
    from kri_core.testing.tiny import tiny_llama

    monkeypatch.setattr(attention, "SCORE_BYTES", {"cpu": 1 << 20})
    model = tiny_llama(max_position_embeddings=4096)
    cartridge = tiny_cartridge(model, num_tokens=2048, block_size=16)
    probe = HfProbe(model, cartridge, texts=(), batch=1)
    count = []
    with largest_tensor() as largest:
        probe.prefill(lambda chunk: count.append(chunk.block_mass.shape[1]))

    assert sum(count) == 3 * 2048
    # the masses of one layer's chunk, [4, 256, 128] float32, are 0.5 MiB
    assert 1 << 19 <= largest.nbytes <= 1 << 20
