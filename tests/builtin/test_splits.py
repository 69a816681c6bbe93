"""The tag and whole splits, on cases resolved by hand."""

import pytest
from attrs import evolve

from kri_core.builtin import tag, whole
from kri_core.errors import ConfigError
from kri_core.types import Layout, Split

LAYOUT = Layout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, num_tokens=0)


def blocks(count):
    return evolve(LAYOUT, num_tokens=4 * count + 3)


def split(anchor, recent, mid, num_blocks):
    return tag.kri_split_blocks(blocks(num_blocks), tag.Params(anchor, recent, mid))


def test_a1r2k13_of_128_blocks_pins_both_ends_and_leaves_125():
    assert split(1, 2, 13, 128) == Split((0,), tuple(range(1, 126)), (126, 127), 13)


@pytest.mark.parametrize("num_blocks", [16, 15, 4, 1, 0])
def test_a_budget_that_covers_every_block_selects_every_block(num_blocks):
    assert split(1, 2, 13, num_blocks).budget == num_blocks


def test_pins_that_overlap_are_counted_once():
    assert split(3, 3, 2, 5) == Split((0, 1, 2), (), (3, 4), 0)
    assert split(9, 9, 0, 5) == Split((0, 1, 2, 3, 4), (), (), 0)


def test_pure_top_k_pins_nothing():
    assert split(0, 0, 2, 4) == Split((), (0, 1, 2, 3), (), 2)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="'recent' must be >= 0: -1"):
        tag.Params(1, -1, 13)


def test_whole_keeps_every_block_and_needs_no_scores():
    assert whole.kri_split_blocks(blocks(3), None) == Split((0, 1, 2), (), (), 0)
    assert whole.kri_split_blocks(blocks(3), 3) == Split((0, 1, 2), (), (), 0)


def test_whole_refuses_a_budget_it_would_exceed():
    wanted = "'whole' keeps all 3 blocks, but the budget is 2; leave the budget out or write A0R0K2"
    with pytest.raises(ConfigError, match=wanted):
        whole.kri_split_blocks(blocks(3), 2)
