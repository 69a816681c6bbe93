"""Placement and content, by hand: the stack .75, next document's blocks .5, random unpinned .25."""

import pytest
from attrs import evolve

from kri_core.errors import ArtifactError
from kri_core.evaluation.board import leaderboard
from kri_core.evaluation.board_text import to_json, to_markdown
from kri_core.evaluation.verifying import read_all

HALF = {0, 1, 4, 5, 8, 9, 12, 13, 16, 17}  # two of four of each document


@pytest.fixture
def placed(results, made):
    """The results with a placement row and a random selector without pins."""
    made.write(results, evolve(made.stack, role="placement"), lambda n, _: n in HALF)
    unpinned = evolve(made.random, stack="A0R0K4(random)", anchor=0, recent=0)
    made.write(results, unpinned, lambda n, _: n % 4 == 3)
    return results


def test_a_gain_is_split_into_placement_and_content(placed):
    """Content of the documents: ½, 0, ¼, ½, 0, so ± is √(0.25 / 4) / √5 = 0.25 / √5."""
    (board,) = leaderboard(read_all([placed])).boards
    (row,) = board.rows

    assert row.placement.placement.mean == pytest.approx(0.25)
    assert row.placement.placement.error == 0
    assert row.placement.content.mean == pytest.approx(0.25)
    assert row.placement.content.error == pytest.approx(0.25 / 5**0.5)
    assert row.placement.content.low < 0.25 < row.placement.content.high


def test_the_parts_are_on_the_page_only_where_they_were_run(placed):
    found = leaderboard(read_all([placed]))
    page = to_markdown(found)

    assert "| row | placement | content |" in page
    assert "| A1R2K1(kri-d), generic probes | +0.250 ± 0.000 [+0.250, +0.250] | +0.250" in page
    assert '"placement": {' in to_json(found)


def test_without_a_placement_row_there_is_no_table_of_it(results):
    page = to_markdown(leaderboard(read_all([results])))

    assert "| placement |" not in page


def test_a_placement_row_without_its_stack_is_refused(placed, made):
    lost = evolve(made.stack, role="placement", stack="A1R2K1(lost)")
    made.write(placed, lost, made.right)

    with pytest.raises(
        ArtifactError,
        match=r"is the placement of A1R2K1\(lost\), generic probes, which is not among these",
    ):
        leaderboard(read_all([placed]))


def test_a_placement_row_needs_random_blocks_without_pins(results, made):
    made.write(results, evolve(made.stack, role="placement"), made.right)

    with pytest.raises(
        ArtifactError, match="there is no random selector without pins and of budget 4; run one"
    ):
        leaderboard(read_all([results]))
