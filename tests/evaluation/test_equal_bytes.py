"""Rows beside the quantised document of their budget: .75 against .5, by hand."""

import json

import pytest
from attrs import evolve

from kri_core.evaluation.board import leaderboard
from kri_core.evaluation.board_text import to_json, to_markdown
from kri_core.evaluation.equal_bytes import bytes_share
from kri_core.evaluation.page import to_html
from kri_core.evaluation.verifying import read_all

HALF = {0, 1, 4, 5, 8, 9, 12, 13, 16, 17}  # two of four of each document
LABEL = "quantised[bits=2,bytes=0.172]"


@pytest.fixture
def quantised(results, made):
    """Writes a quantised row of one budget, or of all, into the results."""

    def write(label, budget):
        header = evolve(made.full, role="reference", stack=label, budget=budget)
        made.write(results, header, lambda n, _: n in HALF, kept=tuple(range(20)))

    return write


def test_a_row_is_compared_with_the_quantised_document_of_its_budget(results, quantised):
    """The documents differ by ½, 0, ¼, ½ and 0: spread √(0.25 / 4) = 0.25, ± 0.25 / √5."""
    quantised(LABEL, 4)
    quantised("quantised[bits=8,bytes=0.547]", None)
    found = leaderboard(read_all([results]))
    (row,) = found.boards[0].rows

    assert (row.equal_bytes.quantised, row.equal_bytes.bytes_share) == (LABEL, 0.172)
    assert row.equal_bytes.difference.mean == pytest.approx(0.25)
    assert row.equal_bytes.difference.error == pytest.approx(0.25 / 5**0.5)
    assert row.equal_bytes.difference.low < 0.25 < row.equal_bytes.difference.high


def test_the_difference_is_on_all_three_pages_with_both_shares(results, quantised):
    quantised(LABEL, 4)
    found = leaderboard(read_all([results]))
    line = f"| A1R2K1(kri-d), generic probes | {LABEL} | +0.250 ± 0.112 ["
    held = json.loads(to_json(found))["boards"][0]["rows"][0]["equal_bytes"]

    assert line in to_markdown(found)
    assert "] | 20.0% | 17.2% |" in to_markdown(found)
    assert (held["difference"]["mean"], held["bytes_share"]) == (0.25, 0.172)
    assert f"<td>{LABEL}</td><td>+0.250 ± 0.112 [" in to_html(found)


@pytest.mark.parametrize("budget", [None, 6])
def test_without_the_one_of_its_budget_there_is_no_comparison(results, quantised, budget):
    quantised(LABEL, budget)
    found = leaderboard(read_all([results]))

    assert found.boards[0].rows[0].equal_bytes is None
    assert "− quantised" not in to_markdown(found) + to_html(found)  # noqa: RUF001


def test_the_same_bits_for_a_budget_and_for_all_are_shown_once(results, quantised):
    label = "quantised[bits=8,bytes=0.547]"
    quantised(label, 4)
    quantised(label, None)
    board = leaderboard(read_all([results])).boards[0]

    assert [row.label for row in board.references] == [label]
    assert board.rows[0].equal_bytes.quantised == label


def test_it_is_drawn_once_and_at_its_share_of_the_bytes(results, quantised, made):
    """Two boards have it."""
    for header in (made.stack, made.random):
        six = evolve(header, budget=6, stack=header.stack.replace("K1", "K3"))
        made.write(results, six, made.right)
    quantised(LABEL, None)
    page = to_html(leaderboard(read_all([results])))

    assert page.count(f"<title>{LABEL}: 0.500 ± 0.000 [0.500, 0.500], 17.2% of the bytes") == 1
    assert f"<title>{LABEL}: 0.500 ± 0.000 [0.500, 0.500], 100.0%" not in page


@pytest.mark.parametrize(
    ("label", "share"), [(LABEL, 0.172), ("quantised[bits=8]", None), ("A1R2K1(oracle)", None)]
)
def test_only_a_quantised_row_has_a_share_of_bytes(label, share):
    assert bytes_share(label) == share
