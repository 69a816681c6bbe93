"""Published rows beside ours: the verdict follows from our adjusted p, whatever was claimed."""

import json
from pathlib import Path

import pytest
from attrs import evolve

from kri_core.errors import ArtifactError
from kri_core.evaluation.board import leaderboard
from kri_core.evaluation.board_text import to_markdown
from kri_core.evaluation.page import to_html
from kri_core.evaluation.published import Claim, Published, read_published
from kri_core.evaluation.verifying import read_all
from kri_core.grammar import parse

REPOSITORY = Path(__file__).parents[2]
CLAIM = Claim("theirs", "26.5 %", "+5 pp", "better", "A1R2K1(kri-d)", "generic")
TABLE = Published("A table.", "LongHealth", "needle8", 4, (CLAIM,))


@pytest.fixture
def num_items():
    return 40  # ten documents


def verdict(results, **changed):
    table = evolve(TABLE, claims=(evolve(CLAIM, **changed),))
    (found,) = leaderboard(read_all([results]), table).judged
    return found.verdict


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("better", "as published"),
        ("flat", "published as flat"),
        ("pending", "nothing was published to agree with"),
    ],
)
def test_a_row_above_random_is_called_better_whatever_was_claimed(results, claim, said):
    """.525 above random, with every document's difference above 0."""
    assert verdict(results, claim=claim) == f"better than A1R2K1(random): {said}"


def test_a_row_that_is_random_s_own_is_not_told_apart(results, made):
    weak = evolve(made.stack, stack="A1R2K1(weak)")
    made.write(results, weak, lambda n, _: n % 20 in (1, 6, 8, 14))

    assert verdict(results, stack="A1R2K1(weak)") == (
        "not told apart from A1R2K1(random): published as better"
    )


def test_a_row_below_random_is_called_worse(results, made):
    """By .75, whose documents are the board's stack's five, twice: t = -.75 √180 = -10.1."""
    for header, right in (
        (evolve(made.stack, stack="A0R0K4(none)"), lambda n, _: False),
        (evolve(made.random, stack="A0R0K4(random)"), made.right),
    ):
        made.write(results, evolve(header, anchor=0, recent=0), right)

    assert verdict(results, stack="A0R0K4(none)", claim="worse") == (
        "worse than A0R0K4(random): as published"
    )


@pytest.mark.parametrize(("others", "said"), [(4, "better than"), (5, "not told apart from")])
def test_the_verdict_is_by_holm_over_the_board(results, made, others, said):
    """Seven documents of ½, two of ¼, one of 0, less .225: t = .175 √10 / √(.275 / 9) = 3.166.

    With 9 degrees the critical t is 3.111 for four comparisons, 3.250 for five (Bonferroni's
    table); the results' own stack is surer, and Holm counts it no more.
    """
    right = (2,) * 7 + (1, 1, 0)
    for number in range(others):
        header = evolve(made.stack, stack=f"A1R2K1(x{number})")
        made.write(results, header, lambda n, _: n % 4 < right[n // 4])

    assert verdict(results, stack="A1R2K1(x0)").startswith(f"{said} A1R2K1(random): ")


@pytest.mark.parametrize("num_items", [28])
def test_of_few_documents_no_row_is_judged(results):
    assert verdict(results) == "not judged: too few documents to rank: 7, and it takes 8"
    assert verdict(results, stack="A1R2K1(other)") == "not run"


def test_a_row_whose_pins_fill_the_budget_is_held_against_what_has_none(results, made):
    recency = evolve(made.stack, stack="recency[budget=4]", anchor=0, recent=4)
    made.write(results, recency, made.right)
    unpinned = evolve(made.random, stack="A0R0K4(random)", anchor=0, recent=0)
    made.write(results, unpinned, lambda n, _: n == 0)

    assert verdict(results, stack="recency[budget=4]") == (
        "better than A0R0K4(random): as published"
    )


def test_published_rows_of_two_boards_are_refused(results, made):
    """The same task and budget on other documents."""
    for header in (made.stack, made.random, made.full, made.floor):
        made.write(results, evolve(header, items_digest="9" * 64), made.right)

    with pytest.raises(
        ArtifactError,
        match="2 boards are of needle8 with 4 blocks, and the published rows are held against one",
    ):
        leaderboard(read_all([results]), TABLE)


def test_a_row_that_was_not_run_is_said(results):
    assert verdict(results, stack="A1R2K1(other)") == "not run"
    assert verdict(results, probe_set="domain") == "not run"


def test_the_random_row_is_itself(results):
    assert verdict(results, stack="A1R2K1(random)", probe_set=None) == "random blocks themselves"


def test_both_pages_say_that_figures_of_two_tasks_cannot_be_compared(results):
    found = leaderboard(read_all([results]), TABLE)

    for page in (to_markdown(found), to_html(found)):
        assert "Theirs are measured on LongHealth, ours on needle8 with 4 blocks" in page
        assert "the figures cannot be compared, only their order and signs" in page


def test_a_board_with_published_rows_is_verified_with_their_file(results, kri, tmp_path):
    table, board = tmp_path / "table.json", tmp_path / "board.html"
    held = {"source": "A.", "measured_on": "B", "task": "needle8", "budget": 4}
    claim = {"name": "n", "figure": "1 %", "against_random": "+1", "claim": "better"}
    claims = [{**claim, "stack": "A1R2K1(kri-d)", "probe_set": "generic"}]
    table.write_text(json.dumps({**held, "claims": claims}))
    made = kri("eval", "leaderboard", results, "--published", table, "--out", board)

    assert made.code == 0
    assert kri("eval", "verify", results, board, "--published", table).code == 0
    without = kri("eval", "verify", results, board)
    assert without.code == 4
    assert "restore the records; if it was made with --published, give that too" in without.err
    board.write_text(board.read_text() + "more\n")
    given = kri("eval", "verify", results, board, "--published", table)
    assert given.code == 4
    assert given.err.endswith("restore the records\n")


def test_the_committed_table_names_stacks_as_records_do():
    table = read_published(REPOSITORY / "docs" / "published.json")

    assert [claim.stack for claim in table.claims] == [
        str(parse(claim.stack)) for claim in table.claims
    ]
    assert (table.task, table.budget) == ("needle8", 16)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON; give a table of published rows"),
        ("{}", "has no list of claims; give a table of published rows"),
        ('{"claims": [{}]}', "claims\\[0\\] lacks name, figure"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, said):
    path = tmp_path / "table.json"
    path.write_text(text)

    with pytest.raises(ArtifactError, match=said):
        read_published(path)


def test_an_unknown_claim_is_refused():
    with pytest.raises(ArtifactError, match=r"claim must be one of better, flat, .*; got 'best'"):
        evolve(CLAIM, claim="best")
