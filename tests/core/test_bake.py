"""A bake asks a scorer once and refuses what would rank nothing."""

import re

import pytest

from kri_core.bake import bake
from kri_core.config import PluginRef
from kri_core.errors import ConfigError, PluginError
from kri_core.registry import Registry
from kri_core.stack import Member

CONSTANT = """
@hookimpl
def kri_score_blocks(cartridge):
    return torch.full((1, 1, cartridge.layout.num_blocks), {value})
"""


def baked(cartridge, name):
    scorer = Member.load(Registry.discover(), "scorer", PluginRef(name))
    return next(prior for _, prior in bake(cartridge, [scorer], None))


def test_scores_that_are_all_zero_make_no_prior(plugin, make_cartridge):
    """CASES 23: what a scorer of attention weights gives where there are none."""
    plugin("scorer", "nothing", CONSTANT.format(value="0.0"))
    said = "scorer 'nothing' of of-nothing 1.0 scored every block 0, so nothing ranks them; no prio"

    with pytest.raises(PluginError, match=re.escape(said)):
        baked(make_cartridge(4), "nothing")


def test_scores_that_are_all_alike_make_one(plugin, make_cartridge):
    """The control: alike is not nothing, and ties have an order."""
    plugin("scorer", "alike", CONSTANT.format(value="0.5"))

    prior = baked(make_cartridge(4), "alike")
    assert prior.scores.values.tolist() == [[[0.5] * 4]]
    assert prior.meta.probe_sha256 is None


def test_a_scorer_that_asks_for_a_model_needs_one(plugin, make_cartridge):
    plugin("scorer", "asking", "@hookimpl\ndef kri_score_blocks(cartridge, probe): ...\n")

    with pytest.raises(ConfigError, match="asking runs the model to score; give one with"):
        baked(make_cartridge(4), "asking")


def test_a_document_shorter_than_a_block_is_refused(plugin, make_cartridge):
    """CASES 21."""
    plugin("scorer", "alike", CONSTANT.format(value="0.5"))

    with pytest.raises(ConfigError, match="'doc' has 0 tokens, less than one block of 1: there"):
        baked(make_cartridge(0), "alike")
