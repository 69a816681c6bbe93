"""Baking several scorers at once: one prefill for all that watch, lists, features, blame."""

import pytest
import torch

from kri_core.bake import bake
from kri_core.config import PluginRef
from kri_core.errors import ConfigError, PluginError
from kri_core.features import block_features
from kri_core.registry import Registry
from kri_core.stack import Member
from kri_core.testing import FakeModel, FakeProbe

TOKENS = [7 * t % 64 for t in range(26)]  # six blocks of 4 and a tail of 2
WATCHER = """
class Watcher:
    first_token = {first}

    def __init__(self):
        self.seen = []

    def see(self, chunk):
        rows = chunk.queries.shape[1]
        assert chunk.block_mass.shape[1] == rows
        if chunk.layer == 0:
            self.seen += range(chunk.first_token, chunk.first_token + rows)

    def scores(self):
        return torch.tensor([[[len(self.seen), min(self.seen), max(self.seen), 1, 1, 1.0]]])

@hookimpl
def kri_watch_prefill(cartridge):
    return Watcher()
"""
LISTS = """
@hookimpl
def kri_rank_blocks(cartridge):
    return {lists}
"""


@pytest.fixture
def document():
    """A cartridge, a probe on it, and the first token of every pass that was run."""
    model = FakeModel.random()
    cartridge = model.cartridge(TOKENS)
    probe = FakeProbe(model, cartridge)
    passes, run = [], probe.prefill

    def counted(observe, first_token=0):
        passes.append(first_token)
        run(observe, first_token)

    probe.prefill = counted
    return cartridge, probe, passes


def baked(document, *names):
    cartridge, probe, _ = document
    registry = Registry.discover()
    scorers = [Member.load(registry, "scorer", PluginRef(name)) for name in names]
    return [prior for _, prior in bake(cartridge, scorers, probe)]


def test_scorers_that_watch_share_one_pass(plugin, document):
    """It begins at the first token that any of them wants; each sees its own tokens only."""
    plugin("scorer", "whole-doc", WATCHER.format(first=0))
    plugin("scorer", "last-part", WATCHER.format(first=9))
    whole, part = baked(document, "whole-doc", "last-part")

    assert document[2] == [0]
    assert whole.scores.values[0, 0, :3].tolist() == [26, 0, 25]
    assert part.scores.values[0, 0, :3].tolist() == [17, 9, 25]


def test_a_window_does_not_run_what_lies_before(plugin, document):
    plugin("scorer", "last-part", WATCHER.format(first=9))
    (part,) = baked(document, "last-part")

    assert document[2] == [9]
    assert part.scores.values[0, 0, 1] == 9


def test_without_a_watcher_no_pass_is_run(plugin, document):
    plugin("scorer", "picks", LISTS.format(lists="{1: (4,), 2: (0, 5)}"))
    (prior,) = baked(document, "picks")

    assert document[2] == []
    assert prior.blocks_per_budget == {1: (4,), 2: (0, 5)}
    assert prior.scores is None


def test_every_prior_baked_with_a_model_keeps_features(plugin, document):
    plugin("scorer", "picks", LISTS.format(lists="{1: (4,)}"))
    (prior,) = baked(document, "picks")

    assert prior.features.shape[0] == 6
    assert (prior.features.norm(dim=-1) - 1).abs().max() < 1e-6


def test_without_a_model_there_are_none(plugin, document):
    plugin("scorer", "picks", LISTS.format(lists="{1: (4,)}"))
    (prior,) = baked((document[0], None, []), "picks")

    assert prior.features is None


def test_a_watcher_without_a_model_is_refused(plugin, document):
    plugin("scorer", "whole-doc", WATCHER.format(first=0))

    with pytest.raises(ConfigError, match="whole-doc runs the model to score; give one"):
        baked((document[0], None, []), "whole-doc")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (WATCHER.format(first=0).replace("self.seen = []", "pass"), "failed in kri_watch_prefill"),
        (WATCHER.format(first=0).replace("return Watcher()", "return 3"), "must return a watcher"),
        (LISTS.format(lists="{2: (4,)}"), "for budget 2 must be that many distinct blocks below 6"),
        (LISTS.format(lists="{2: (4, 4)}"), "got 2, 1 of them distinct"),
        (LISTS.format(lists="{1: (6,)}"), "for budget 1 must be that many distinct blocks below 6"),
        (LISTS.format(lists="{'1': (5,)}"), "for budget '1' must be"),
        (LISTS.format(lists="{}"), "a ranking is a dict of budgets to blocks"),
    ],
)
def test_a_broken_promise_names_the_plugin(plugin, document, source, said):
    plugin("scorer", "odd", source)

    with pytest.raises(PluginError, match="scorer 'odd' of of-odd") as caught:
        baked(document, "odd")
    assert said in str(caught.value)


def test_features_are_alike_where_keys_are():
    """Two layers of one head: blocks 0 and 2 have the same mean keys, block 1 the opposite."""
    means = torch.tensor([[1.0, 0], [-1, 0], [1, 0]]).expand(2, 1, 3, 2)

    likeness = block_features(means) @ block_features(means).T
    torch.testing.assert_close(
        likeness, torch.tensor([[1.0, -1, 1], [-1, 1, -1], [1, -1, 1]]), atol=1e-6, rtol=0
    )


def test_token_mass_sums_to_block_mass_and_is_the_softmax(document):
    """Against the fake model's own weights of every token."""
    _cartridge, probe, _ = document
    weights = probe.model.run(TOKENS, range(26)).weights  # [layer, q_head, token, key]

    def compare(chunk):
        rows = slice(chunk.first_token, chunk.first_token + chunk.queries.shape[1])
        mass = chunk.token_mass([0, 3], 4)
        expected = weights[chunk.layer, :, rows, :24].unflatten(-1, (6, 4))[:, :, [0, 3]]
        torch.testing.assert_close(mass, expected, atol=1e-6, rtol=0)

    probe.prefill(compare)
