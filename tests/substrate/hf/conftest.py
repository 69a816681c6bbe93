from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kri_core.testing.tiny import random_tokens, tiny, tiny_cartridge

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "multi-head": ("Llama", {"num_key_value_heads": 4}),
    "multi-query": ("Llama", {"num_key_value_heads": 1}),
    "llama3-rope": ("Llama", {"rope_scaling": LLAMA3}),
    "yarn": ("Llama", {"rope_scaling": YARN}),
    "partial-rope": ("Phi", {"partial_rotary_factor": 0.5}),
    "interleaved-rope": ("Cohere", {}),
}


def eager(model, token_ids, mask=None, **options):
    """Plain transformers: eager attention over all tokens, with a hand-built mask."""
    transformers_model = model.model
    previous = transformers_model.config._attn_implementation
    transformers_model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return transformers_model(
                torch.tensor([list(token_ids)]), attention_mask=mask, **options
            )
    finally:
        transformers_model.set_attn_implementation(previous)


def restricted_mask(cartridge, num_question, visible):
    """[1, 1, token, token]: causal, and no question token sees an invisible block."""
    total, size = cartridge.layout.num_tokens + num_question, cartridge.layout.block_size
    allowed = torch.ones(total, total, dtype=torch.bool).tril()
    for block, shown in enumerate(visible):
        if not shown:
            start = block * size
            allowed[cartridge.layout.num_tokens :, start : start + size] = False
    return torch.zeros(1, 1, total, total).masked_fill(~allowed, torch.finfo(torch.float32).min)


class Largest(TorchDispatchMode):
    """The most bytes of any tensor made inside."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.nbytes = max(self.nbytes, tensor.numel() * tensor.element_size())
        return made


@pytest.fixture
def largest_tensor():
    return Largest


@pytest.fixture(scope="session")
def run_eager():
    return eager


@pytest.fixture(scope="session")
def mask_of():
    return restricted_mask


@pytest.fixture(scope="session", params=KINDS)
def case(request):
    """A model of each kind, its cartridge, a question, and rows of visible blocks."""
    family, overrides = KINDS[request.param]
    model = tiny(family, **overrides)
    visible = torch.tensor(
        [[1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 0, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    ).bool()
    return SimpleNamespace(
        model=model,
        cartridge=tiny_cartridge(model),
        question=random_tokens(5, seed=1),
        visible=visible,
    )


@pytest.fixture(scope="session")
def dense(case):
    """Logits [row, question token, vocab] by one forward over document and question."""
    tokens = [*case.cartridge.token_ids, *case.question]
    rows = [
        eager(case.model, tokens, restricted_mask(case.cartridge, len(case.question), row)).logits[
            0, -len(case.question) :
        ]
        for row in case.visible
    ]
    return torch.stack(rows)
