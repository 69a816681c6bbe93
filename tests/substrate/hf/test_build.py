"""A cartridge is what transformers itself would have cached."""

from __future__ import annotations

import pytest
import torch

from kri_core.errors import ConfigError
from kri_core.substrate.hf import build, build_cartridge, build_from_tokens
from kri_core.testing.tiny import random_tokens, tiny, tiny_llama

CLOSE = {"atol": 1e-5, "rtol": 0}


def one_shot(model, tokens):
    """Keys and values of one plain forward, each [layer, kv_head, token, head_dim]."""
    from transformers import DynamicCache

    cache = DynamicCache()
    model.run(model.tokens(tokens), model.positions(0, len(tokens)), cache=cache, keep=0)
    layers = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
    return tuple(torch.stack(side) for side in zip(*layers, strict=True))


def test_chunked_prefill_equals_one_forward(case, monkeypatch):
    monkeypatch.setattr(build, "CHUNK", 7)
    cartridge = build_from_tokens(case.model, case.cartridge.token_ids, cart_id="x", block_size=8)

    keys, values = one_shot(case.model, case.cartridge.token_ids)
    torch.testing.assert_close(cartridge.keys(), keys[:, :, :48], **CLOSE)
    torch.testing.assert_close(cartridge.values(), values[:, :, :48], **CLOSE)
    torch.testing.assert_close(cartridge.tail[:, 0], keys[:, :, 48:], **CLOSE)
    torch.testing.assert_close(cartridge.tail[:, 1], values[:, :, 48:], **CLOSE)


def test_axes_and_facts(tiny_llama):
    reports = []
    tokens = random_tokens(20)
    cartridge = build_from_tokens(
        tiny_llama, tokens, cart_id="axes", block_size=8, progress=lambda *at: reports.append(at)
    )

    assert cartridge.kv.shape == (2, 3, 2, 2, 8, 8)
    assert cartridge.tail.shape == (3, 2, 2, 4, 8)
    assert cartridge.token_ids == tuple(tokens)
    assert (cartridge.cart_id, cartridge.trained) == ("axes", False)
    assert cartridge.model == tiny_llama.identity
    assert reports == [(20, 20)]
    keys, _ = one_shot(tiny_llama, tokens)
    block_1 = cartridge.kv[1, 2, 0, 1]  # of layer 2, KV head 1: tokens 8 to 15
    torch.testing.assert_close(block_1, keys[2, 1, 8:16], **CLOSE)


def test_progress_counts_tokens(tiny_llama, monkeypatch):
    monkeypatch.setattr(build, "CHUNK", 8)
    reports = []
    build_from_tokens(
        tiny_llama,
        random_tokens(20),
        cart_id="x",
        block_size=4,
        progress=lambda *at: reports.append(at),
    )
    assert reports == [(8, 20), (16, 20), (20, 20)]


def test_a_text_keeps_the_special_token_its_tokenizer_puts_first(tiny_llama):
    cartridge = build_cartridge(tiny_llama, "a text of some length", cart_id="x", block_size=4)

    assert tiny_llama.tokenizer.decode(cartridge.token_ids) == "<s>a text of some length"
    assert cartridge.layout.num_tokens == 22


def test_max_tokens_keeps_the_first(tiny_llama):
    cartridge = build_cartridge(tiny_llama, "a text", cart_id="x", block_size=4, max_tokens=5)
    assert tiny_llama.tokenizer.decode(cartridge.token_ids) == "<s>a te"


def test_the_models_dtype_is_kept():
    model = tiny("Llama", dtype=torch.bfloat16)
    assert build_cartridge(model, "a text", cart_id="x", block_size=4).kv.dtype == torch.bfloat16


def test_a_text_longer_than_the_model_takes():
    """CASES 21."""
    model = tiny_llama(max_position_embeddings=16)
    full = build_from_tokens(model, random_tokens(16), cart_id="x", block_size=4)
    assert full.layout.num_tokens == 16
    with pytest.raises(
        ConfigError,
        match="the document has 17 tokens, but tiny-llama takes 16; cut it with --max-tokens",
    ):
        build_from_tokens(model, random_tokens(17), cart_id="x", block_size=4)


def test_yarn_stretches_what_the_model_takes():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert tiny_llama(max_position_embeddings=16, rope_scaling=yarn).max_positions == 64


def test_a_document_without_tokens(tiny_llama):
    with pytest.raises(ConfigError, match="the document has no tokens; give a longer text"):
        build_from_tokens(tiny_llama, [], cart_id="x", block_size=4)
