"""The pass that scorers share holds O(chunk · token) beside the model and the cartridge."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kri_core.config import PluginRef
from kri_core.registry import Registry
from kri_core.stack import Member
from kri_core.substrate.hf import HfProbe
from kri_core.substrate.hf.probe import PREFILL_TOKENS
from kri_core.testing.tiny import tiny, tiny_cartridge
from kri_core.watching import watch_prefill

HEADS = 2
SCORERS = ("attention-prefill", "h2o", "tova")
LENGTHS = (4096, 8192)


class Live(TorchDispatchMode):
    """The most bytes that tensors made inside held at once; views hold none of their own."""

    def __init__(self):
        super().__init__()
        self.held = {}  # address of a storage → its bytes
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in self.held:
                storage = tensor.untyped_storage()
                self.held[id(storage)] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, id(storage))
        self.peak = max(self.peak, self.now)
        return made

    def _free(self, address):
        self.now -= self.held.pop(address)


@pytest.fixture(scope="module")
def model():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 1}
    return tiny("Llama", max_position_embeddings=max(LENGTHS), **sizes, **heads)


def peak_of_the_shared_pass(model, num_tokens):
    cartridge = tiny_cartridge(model, num_tokens, block_size=16)
    registry = Registry.discover()
    scorers = [Member.load(registry, "scorer", PluginRef(name)) for name in SCORERS]
    with Live() as live:
        scores = watch_prefill(scorers, cartridge, HfProbe(model, cartridge, (), 1))
    assert len(scores) == len(SCORERS)
    return live.peak


def peak_of_dense_attention(num_tokens):
    keys = torch.ones(HEADS, num_tokens, 8)
    with Live() as live:
        torch.softmax(keys @ keys.mT, -1)
    return live.peak


def test_several_scorers_share_a_pass_in_o_of_chunk_times_token(model):
    """Twice the tokens are at most twice the bytes, and those are about one chunk's weights."""
    peaks = [peak_of_the_shared_pass(model, length) for length in LENGTHS]

    assert peaks[1] < 2 * peaks[0]
    assert peaks[1] < 2 * HEADS * PREFILL_TOKENS * LENGTHS[1] * 4


def test_dense_attention_is_seen_to_hold_the_square():
    """By the same measure, so that the test above would notice: logits and weights of all pairs."""
    peaks = [peak_of_dense_attention(length) for length in (2048, 4096)]

    assert peaks[1] > 3.9 * peaks[0]
    assert peaks[1] >= 2 * HEADS * 4096**2 * 4
    assert peaks[1] > 10 * HEADS * PREFILL_TOKENS * 4096 * 4


def test_what_is_freed_is_no_longer_held():
    with Live() as live:
        for _ in range(3):
            torch.ones(1000).view(10, 100)[2:].mul_(2)

    assert (live.now, live.peak) == (0, 4000)
