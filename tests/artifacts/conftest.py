"""Cartridges and priors small enough to follow, and the two file formats."""

from __future__ import annotations

import pytest
import torch

from kri_core.artifacts import block_major, seal
from kri_core.identity import ModelIdentity
from kri_core.prior import PriorMeta


@pytest.fixture
def model():
    return ModelIdentity(
        "models/tiny",
        revision="r1",
        architecture="Tiny-2-2-8",
        rope='{"theta":10000}',
        weights="w1",
        tokenizer="t1",
    )


@pytest.fixture
def make_cartridge(model):
    """Layer l, side s, head h, token t, dimension d holds a draw of its own."""

    def make(
        num_tokens=11,
        block_size=4,
        num_layers=2,
        kv_heads=2,
        head_dim=8,
        dtype=torch.float32,
        seed=0,
        cart_id="doc",
        trained=False,
        token_ids=None,
    ):
        draw = torch.Generator().manual_seed(seed)
        shape = (num_layers, 2, kv_heads, num_tokens, head_dim)
        kv = torch.randn(shape, generator=draw).to(dtype)
        ids = range(100, 100 + num_tokens) if token_ids is None else token_ids
        blocks, tail = block_major([(k, v) for k, v in kv], num_layers, block_size)
        return seal(cart_id, block_size, model, tuple(ids), blocks, tail, trained)

    return make


@pytest.fixture(params=[".safetensors", ".pt"])
def suffix(request):
    return request.param


@pytest.fixture
def meta():
    """Of a prior over 4 blocks, 2 layers and 2 KV heads."""
    return PriorMeta(
        algorithm="kri-d-kv-sum",
        algorithm_version="0.1.0",
        params={"norm": "relative"},
        model_id="models/tiny",
        model_revision=None,
        model_fingerprint="f1",
        num_layers=2,
        num_kv_heads=2,
        score_heads=1,
        num_blocks=4,
        block_size=4,
        doc_len=17,
        prefix_hash="p1",
        cartridge_sha256="c1",
        probe_sha256=("a", "b"),
        dtype="float32",
        created_at="2026-01-02T03:04:05+00:00",
    )
