"""A press of keys and one that draws at random keep the slot's contract, on a transformers model.

Presses with a window or sinks refuse the contract's shortest document.
"""

import pytest

from kri_core.testing import ScorerContract

pytest.importorskip("kvpress", reason="kvpress is not installed: .ci/run tests it on its own")

from kri_core.substrate.hf import HfProbe
from kri_core.testing.tiny import tiny_cartridge, tiny_llama


def document(num_tokens, dtype):
    model = tiny_llama(dtype=dtype)
    cartridge = tiny_cartridge(model, num_tokens, block_size=4)
    return cartridge, HfProbe(model, cartridge, (), 16)


class TestKnorm(ScorerContract):
    plugin = "kvpress[press=knorm]"
    document = staticmethod(document)


class TestRandom(ScorerContract):
    plugin = "kvpress[press=random,pool=max]"
    document = staticmethod(document)
