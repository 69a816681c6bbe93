"""Reference selections, on spans and splits resolved by hand."""

import pytest

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks import Span
from kri_core.evaluation.tasks.references import (
    oracle,
    oracle_doc,
    position_matched,
    random_blocks,
)
from kri_core.types import Split

SPLIT = Split.pin(20, anchor=1, recent=2, mid_budget=5)  # mid: blocks 1 to 17


@pytest.mark.parametrize("seed", range(20))
def test_random_blocks_are_those_of_the_plugin(seed):
    from kri_plugin_hybrid import random_middle

    params = random_middle.Params(seed=seed)
    drawn = random_middle.kri_select_blocks(SPLIT, "a document", params)

    assert random_blocks(SPLIT, seed, "a document") == tuple(sorted(drawn))


def test_another_seed_or_document_draws_other_blocks():
    first = random_blocks(SPLIT, 0, "a document")

    assert first != random_blocks(SPLIT, 1, "a document")
    assert first != random_blocks(SPLIT, 0, "another document")


def test_the_oracle_keeps_the_evidence_and_fills_up_at_random():
    """Blocks of 4: tokens 10 to 17 lie in blocks 2, 3 and 4."""
    kept = oracle(SPLIT, (Span(10, 18),), 4, 0, "a document")
    rest = set(kept) - {0, 18, 19, 2, 3, 4}

    assert len(kept) == 8 == len(set(kept))
    assert {0, 18, 19, 2, 3, 4} <= set(kept)
    assert len(rest) == 2
    others = {oracle(SPLIT, (Span(10, 18),), 4, seed, "a document") for seed in range(10)}
    assert len(others) > 1


def test_the_oracle_of_no_evidence_is_random():
    assert oracle(SPLIT, (), 4, 3, "x") == random_blocks(SPLIT, 3, "x")


def test_evidence_that_is_pinned_or_in_the_tail_takes_no_room():
    """Block 0 and block 19 are pinned; tokens 80 and on are the tail of 20 blocks of 4."""
    evidence = (Span(0, 4), Span(76, 84), Span(8, 12))
    kept = oracle(SPLIT, evidence, 4, 0, "x")

    assert len(kept) == 8
    assert 2 in kept
    assert max(kept) == 19


def test_more_evidence_than_budget_keeps_what_occurs_first():
    """oracle-doc ranks by first occurrence: blocks 2, 3, 6, 7 and 9 of seven, whoever asks."""
    per_question = [(Span(36, 40), Span(48, 52)), (Span(8, 16),), (Span(24, 32), Span(56, 60))]

    for seed in range(5):
        kept = oracle_doc(SPLIT, per_question, 4, seed, "x")
        assert kept == (0, 2, 3, 6, 7, 9, 18, 19)


def test_a_budget_for_all_blocks_keeps_all():
    split = Split.pin(6, anchor=1, recent=2, mid_budget=13)

    assert random_blocks(split, 0, "x") == oracle(split, (), 4, 0, "x") == tuple(range(6))


def test_matched_positions_are_another_document_s_and_all_are_used_once():
    assert [position_matched(which, 3) for which in range(3)] == [1, 2, 0]
    with pytest.raises(ConfigError, match="placement is told from two documents or more; got one"):
        position_matched(0, 1)
