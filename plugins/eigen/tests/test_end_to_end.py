"""Three centralities in one bake over a transformers model: one prefill, as if baked alone."""

import pytest
import torch

from kri_core import PluginRef
from kri_core.bake import bake
from kri_core.registry import Registry
from kri_core.stack import Member

pytest.importorskip("transformers")

from kri_core.substrate.hf import HfProbe
from kri_core.testing.tiny import tiny, tiny_cartridge

NAMES = ("eigen", "katz", "pagerank")


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


def test_three_scorers_share_one_prefill():
    model = tiny("Qwen3")
    cartridge = tiny_cartridge(model, num_tokens=102, block_size=8)
    together = baked(model, cartridge, *NAMES)
    assert Counting.passes == [0]

    for name, scores in zip(NAMES, together, strict=True):
        (alone,) = baked(model, cartridge, name)
        assert alone.equal(scores)
        assert scores.shape == (1, 1, 12)
        assert float(scores.sum()) == pytest.approx(1)
        assert (scores > 0).all()
        assert len(set(scores.flatten().tolist())) == 12
    assert torch.stack(together).flatten(1).argsort().unique(dim=0).shape[0] > 1
