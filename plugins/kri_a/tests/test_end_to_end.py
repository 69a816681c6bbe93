"""All five scorers in one bake over a transformers model: one prefill, and as if baked alone."""

import pytest
import torch
from attrs import evolve

from kri_core import ConfigError, PluginRef
from kri_core.bake import bake
from kri_core.registry import Registry
from kri_core.stack import Member

pytest.importorskip("transformers")

from kri_core.substrate.hf import HfProbe
from kri_core.testing.tiny import tiny, tiny_cartridge

NAMES = ("attention-prefill", "h2o", "kri-a", "snapkv", "tova")


class Counting(HfProbe):
    passes: list = []  # noqa: RUF012 - one per test run

    def prefill(self, observe, first_token=0):
        self.passes.append(first_token)
        super().prefill(observe, first_token)


def baked(model, cartridge, *names):
    registry = Registry.discover()
    members = [Member.load(registry, "scorer", PluginRef(name)) for name in names]
    Counting.passes.clear()
    probe = Counting(model, cartridge, (), 16)
    return [prior.scores.values for _, prior in bake(cartridge, members, probe)]


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_five_scorers_share_one_prefill(family):
    model = tiny(family)
    cartridge = tiny_cartridge(model, num_tokens=102, block_size=8)
    together = baked(model, cartridge, *NAMES)
    assert Counting.passes == [0]

    for name, scores in zip(NAMES, together, strict=True):
        (alone,) = baked(model, cartridge, name)
        assert len(Counting.passes) == 1
        assert scores.shape == (3, 1 if name == "tova" else 2, 12)
        torch.testing.assert_close(alone, scores, rtol=0, atol=1e-5)


def test_scorers_of_the_last_token_prefill_the_last_block_only():
    model = tiny("Llama")
    baked(model, tiny_cartridge(model, num_tokens=100, block_size=8), "kri-a", "tova")

    assert Counting.passes == [99]


def test_a_trained_cartridge_is_refused():
    model = tiny("Llama")
    trained = evolve(tiny_cartridge(model), trained=True)
    with pytest.raises(ConfigError, match="is trained, so its document cannot be run"):
        baked(model, trained, "attention-prefill")
