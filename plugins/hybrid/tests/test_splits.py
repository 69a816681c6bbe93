"""The hybrid and recency splits, on cases resolved by hand."""

import pytest
from kri_plugin_hybrid import hybrid, recency

from kri_core import ConfigError, Layout, Split


def blocks(count):
    return Layout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, num_tokens=4 * count + 1)


def test_hybrid_keeps_two_at_the_head_and_six_at_the_tail():
    split = hybrid.kri_split_blocks(blocks(128), None, hybrid.Params())

    assert split == Split((0, 1), tuple(range(2, 122)), tuple(range(122, 128)), 0)


@pytest.mark.parametrize("num_blocks", [0, 1, 7, 8])
def test_hybrid_keeps_a_short_document_whole_and_counts_no_block_twice(num_blocks):
    split = hybrid.kri_split_blocks(blocks(num_blocks), 8, hybrid.Params())

    assert split.anchor + split.recent == tuple(range(num_blocks))


def test_hybrid_refuses_a_budget_that_is_not_its_own():
    wanted = r"'hybrid' keeps anchor \+ recent = 8 blocks, but the budget is 16; leave the budget"
    with pytest.raises(ConfigError, match=wanted):
        hybrid.kri_split_blocks(blocks(20), 16, hybrid.Params())
    assert hybrid.kri_split_blocks(blocks(20), 16, hybrid.Params(4, 12)).budget == 16


def test_recency_keeps_the_last_blocks():
    assert recency.kri_split_blocks(blocks(128), 4) == Split(
        (), tuple(range(124)), (124, 125, 126, 127), 0
    )
    assert recency.kri_split_blocks(blocks(3), 4) == Split((), (), (0, 1, 2), 0)
    assert recency.kri_split_blocks(blocks(3), 0) == Split((), (0, 1, 2), (), 0)


def test_recency_without_a_budget_says_how_to_write_one():
    wanted = r"'recency' needs a budget and got none; write recency\[budget=16\]"
    with pytest.raises(ConfigError, match=wanted):
        recency.kri_split_blocks(blocks(3), None)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="'recent' must be >= 0: -6"):
        hybrid.Params(recent=-6)
