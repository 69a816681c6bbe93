"""A board by hand: documents of 4 items, a stack at .75, random .225, full .85, floor .1."""

import math
from itertools import permutations

import pytest
from attrs import evolve

from kri_core.errors import ArtifactError
from kri_core.evaluation.board import leaderboard
from kri_core.evaluation.board_text import to_json, to_markdown
from kri_core.evaluation.board_words import p_text
from kri_core.evaluation.page import to_html
from kri_core.evaluation.power import detectable_effect
from kri_core.evaluation.verifying import read_all

TEN = pytest.mark.parametrize("num_items", [40])  # ten documents, each of the five twice
UNABLE = (
    "full attention is not told apart from no document: this model cannot do this task, and no "
    "row means anything"
)


def board_of(folder):
    (board,) = leaderboard(read_all([folder])).boards
    return board


def test_the_numbers_of_a_board_are_those_worked_out_by_hand(results):
    """The stack's documents are 1, ½, ¾, 1, ½; the null's are all .225, its seeds .20 and .25."""
    board = board_of(results)
    (row,) = board.rows
    (null,) = board.nulls

    assert (board.chance, board.num_items, board.num_groups, board.budget) == (0.125, 20, 5, 4)
    assert (board.floor.scores["mc"].mean, board.full.scores["mc"].mean) == (0.1, 0.85)
    assert row.scores["mc"].mean == 0.75
    assert row.scores["mc"].error == pytest.approx(0.25 / math.sqrt(5))
    assert row.scores["em"].mean == 0.375
    assert (row.kept_fraction, board.full.kept_fraction) == (0.2, 1.0)
    assert null.seeds.mean == pytest.approx(0.225)
    assert null.seeds.spread == pytest.approx(0.025 * math.sqrt(20 / 19))
    assert (null.seeds.least, null.seeds.most, null.seeds.num_seeds) == (0.2, 0.25, 20)


def test_a_row_is_compared_with_the_random_selector_of_its_pins(results):
    (row,) = board_of(results).rows
    against = row.against_random

    assert against.null == "A1R2K1(random)"
    assert against.difference.mean == pytest.approx(0.525)
    assert against.difference.error == pytest.approx(0.25 / math.sqrt(5))
    assert against.recovery.share == pytest.approx(0.525 / 0.625)
    assert against.recovery.low < 0.84 < against.recovery.high
    assert board_of(results).detectable == pytest.approx(detectable_effect(5, 0.25))


def test_the_two_sigmas_are_not_one(results):
    """The published '5 σ': over seeds this row has 20, over documents not even 5."""
    (row,) = board_of(results).rows

    assert row.against_random.sigma_documents == pytest.approx(0.525 * math.sqrt(5) / 0.25)
    assert row.against_random.sigma_seeds == pytest.approx(0.525 / (0.025 * math.sqrt(20 / 19)))


def test_holm_is_over_the_stacks_of_a_board(results, made):
    """The second row of two keeps its p, the first has twice its own."""
    made.write(results, evolve(made.stack, stack="A1R2K1(weak)"), lambda n, _: n in (1, 6, 8, 14))
    strong, weak = (row.against_random for row in board_of(results).rows)

    assert strong.p_holm == pytest.approx(2 * strong.p)
    assert weak.p_holm == weak.p > strong.p_holm


@TEN
def test_rows_that_cannot_be_told_apart_share_a_tier_and_a_tie_is_marked(results, made):
    """CASES 41: a tie is not settled by name, whichever way the names go."""
    for name in ("a", "z"):
        made.write(results, evolve(made.stack, stack=f"A1R2K1({name})"), made.right)
    made.write(results, evolve(made.stack, stack="A1R2K1(none)"), lambda n, _: False)
    rows = board_of(results).rows

    assert [(row.tier, row.tied) for row in rows] == [(1, True)] * 3 + [(2, False)]
    assert "| 1 = | A1R2K1(z), generic probes |" in to_markdown(leaderboard(read_all([results])))


def test_a_board_does_not_depend_on_the_order_of_its_records(results):
    texts = {
        to_json(leaderboard(records)) + to_markdown(leaderboard(records))
        for records in permutations(read_all([results]))
    }

    assert len(texts) == 1


@TEN
def test_a_ceiling_below_the_floor_is_not_ranked(results, made):
    """CASES 42."""
    floor = next(path for path in results.iterdir() if '"role":"floor"' in path.read_text())
    floor.unlink()
    made.write(results, made.floor, lambda n, _: n % 20 != 3, kept=())
    board = board_of(results)

    assert board.not_ranked == (
        "full attention has mc 0.850, less than the 0.950 without the document: this model cannot "
        "do this task"
    )
    assert [row.tier for row in board.rows] == [None]
    assert f"Not ranked: {board.not_ranked}." in to_markdown(leaderboard(read_all([results])))


@TEN
@pytest.mark.parametrize("wrong", [(3, 8, 15), (3, 8, 11, 15)])
def test_a_ceiling_that_is_not_told_apart_from_the_floor_is_not_ranked(results, made, wrong):
    """Full attention is right but for 3, 8 and 15: equal, and better in one document of five."""
    floor = next(path for path in results.iterdir() if '"role":"floor"' in path.read_text())
    floor.unlink()
    made.write(results, made.floor, lambda n, _: n % 20 not in wrong, kept=())
    found = leaderboard(read_all([results]))
    (board,) = found.boards

    assert board.unable == board.not_ranked == UNABLE
    assert [row.tier for row in board.rows] == [None]
    for page in (to_markdown(found), to_html(found)):
        assert board.not_ranked in page
        assert "better than their random blocks" not in page
        assert "In the best tier" not in page


@TEN
def test_a_ceiling_that_is_told_apart_is_ranked(results):
    """The control: .85 against .10."""
    board = board_of(results)

    assert (board.unable, board.not_ranked) == (None, None)
    assert [(row.tier, row.tied) for row in board.rows] == [(1, False)]


@pytest.mark.parametrize("num_items", [8, 28])
def test_few_documents_are_not_ranked_and_called_neither_better_nor_worse(results, num_items):
    """Two and seven documents; the numbers stay, and the model can do the task."""
    found = leaderboard(read_all([results]))
    (board,) = found.boards
    (row,) = board.rows

    assert board.not_ranked == f"too few documents to rank: {num_items // 4}, and it takes 8"
    assert (board.unable, row.tier) == (None, None)
    assert row.against_random.difference.low > 0
    for page in (to_markdown(found), to_html(found)):
        assert f"Not ranked: {board.not_ranked}." in page
        assert "better than their random blocks" not in page
        assert "is found with" not in page


@pytest.mark.parametrize("num_items", [32])
def test_eight_documents_are_ranked(results):
    """The control of the above."""
    board = board_of(results)

    assert board.not_ranked is None
    assert [row.tier for row in board.rows] == [1]
    assert "Of 1 rows 1 are better" in to_markdown(leaderboard(read_all([results])))


def test_few_documents_of_a_task_that_cannot_be_done_have_both_reasons(results, made):
    for role in ("floor", "full"):
        next(path for path in results.iterdir() if f'"role":"{role}"' in path.read_text()).unlink()
    for header in (made.floor, made.full):
        made.write(results, header, lambda n, _: False, kept=())

    assert board_of(results).not_ranked == (
        f"{UNABLE}; too few documents to rank: 5, and it takes 8"
    )


def test_few_documents_do_not_say_that_a_better_ceiling_is_none(results, made):
    """Full attention is right but for 3, 8 and 15 of 20, no document but for 11, too: by one."""
    next(path for path in results.iterdir() if '"role":"floor"' in path.read_text()).unlink()
    made.write(results, made.floor, lambda n, _: n not in (3, 8, 11, 15), kept=())

    assert board_of(results).not_ranked == "too few documents to rank: 5, and it takes 8"


def test_a_parameter_with_line_breaks_stays_on_one_line(results, made):
    """A control beside it: what is printable is shown as it is."""
    records = [
        evolve(one, header=evolve(one.header, task_params={"a": "plain {q}", "b": "two\nlines"}))
        for one in read_all([results])
    ]
    found = leaderboard(records)

    assert "20 items of 5 documents; a=plain {q}; b='two\\nlines'." in to_markdown(found)
    assert "20 items of 5 documents; a=plain {q}; b=&#x27;two\\nlines&#x27;.<" in to_html(found)


@pytest.mark.parametrize("name", ["fingerprint", "dtype", "substrate"])
def test_records_of_two_models_are_no_board(results, made, name):
    made.write(results, evolve(made.stack, stack="A1R2K1(x)", **{name: "other"}), made.right)

    with pytest.raises(ArtifactError, match=rf"differ in {name} \(.*; a leaderboard is of one"):
        leaderboard(read_all([results]))


def test_a_stack_without_a_null_of_its_pins_is_refused(results, made):
    made.write(results, evolve(made.stack, stack="A0R0K4(x)", anchor=0, recent=0), made.right)

    with pytest.raises(
        ArtifactError, match=r"A0R0K4\(x\), generic probes has no random selector with its pins"
    ):
        leaderboard(read_all([results]))


def test_a_stack_whose_pins_leave_no_choice_is_compared_with_unpinned_random(results, made):
    recency = evolve(made.stack, stack="recency[budget=4]", anchor=0, recent=4)
    made.write(results, recency, made.right)
    unpinned = evolve(made.random, stack="A0R0K4(random)", anchor=0, recent=0)
    made.write(results, unpinned, lambda n, seed: n == seed)
    nulls = {row.label: row.against_random.null for row in board_of(results).rows}

    assert nulls == {
        "A1R2K1(kri-d), generic probes": "A1R2K1(random)",
        "recency[budget=4], generic probes": "A0R0K4(random)",
    }


def test_a_null_of_few_seeds_is_refused(tmp_path, results, made):
    for path in results.iterdir():
        if '"role":"random"' in path.read_text():
            path.unlink()
    made.write(results, evolve(made.random, seeds=tuple(range(19))), made.right)

    with pytest.raises(ArtifactError, match="a random null needs 20 seeds; it has 19: run more"):
        leaderboard(read_all([results]))


@pytest.mark.parametrize("role", ["full", "floor"])
def test_a_board_needs_ceiling_and_floor(results, role):
    for path in results.iterdir():
        if f'"role":"{role}"' in path.read_text():
            path.unlink()

    with pytest.raises(
        ArtifactError, match=f"needs exactly one record of role {role}; got there is none"
    ):
        leaderboard(read_all([results]))


def test_two_records_of_one_row_are_refused(results, made):
    made.write(results, evolve(made.stack, code="0.2.0"), made.right)

    with pytest.raises(ArtifactError, match=r"are both the row .*; they differ in code: give one"):
        leaderboard(read_all([results]))


def test_a_copy_of_a_record_is_refused_and_a_file_named_twice_read_once(results, made):
    path = sorted(results.iterdir())[0]
    assert len(read_all([results, path, path])) == 4
    (results / f"2026-12-01{path.name[10:]}").write_bytes(path.read_bytes())

    with pytest.raises(ArtifactError, match=r"are both the row|exactly one record of role"):
        leaderboard(read_all([results]))


def test_rows_of_two_versions_are_said(results, made):
    made.write(results, evolve(made.stack, stack="A1R2K1(x)", code="0.2.0"), made.right)

    assert "kri-core 0.1.0 and 0.2.0." in to_markdown(leaderboard(read_all([results])))


def test_an_unfinished_record_is_refused(results):
    path = sorted(results.iterdir())[0]
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(ArtifactError, match="run the same command again to finish it"):
        leaderboard(read_all([results]))


def test_records_that_rank_by_other_scores_are_refused(results, made):
    made.write(results, evolve(made.stack, stack="A1R2K1(x)", ranked_by="em"), made.right)

    with pytest.raises(ArtifactError, match=r"differ in ranked_by .*; a board of needle8 is of"):
        leaderboard(read_all([results]))


def test_each_budget_is_a_board_beside_the_same_ceiling(results, made):
    for header in (made.stack, made.random):
        six = evolve(header, budget=6, stack=header.stack.replace("K1", "K3"))
        made.write(results, six, made.right)
    boards = leaderboard(read_all([results])).boards

    assert [(board.budget, len(board.rows)) for board in boards] == [(4, 1), (6, 1)]
    assert boards[0].full == boards[1].full


@TEN
def test_references_are_shown_and_not_ranked(results, made):
    made.write(results, evolve(made.stack, role="reference", stack="oracle"), lambda n, _: True)
    board = board_of(results)

    assert [(row.label, row.tier) for row in board.references] == [("oracle, generic probes", None)]
    assert [row.tier for row in board.rows] == [1]


def test_a_stack_without_a_budget_is_refused(results, made):
    made.write(results, evolve(made.stack, budget=None), made.right)

    with pytest.raises(ArtifactError, match="is a stack without a budget; run it with one"):
        leaderboard(read_all([results]))


def test_no_record_and_no_stack_are_no_board(results):
    with pytest.raises(ArtifactError, match="there is no record to make a board of"):
        leaderboard([])
    held = [one for one in read_all([results]) if one.header.role != "stack"]
    with pytest.raises(ArtifactError, match="no stack was run on needle8; a board needs one"):
        leaderboard(held)


def test_a_small_p_is_not_printed_as_none_at_all():
    assert [p_text(p) for p in (0.0271, 0.0001, 2**-24)] == ["0.0271", "0.0001", "<0.0001"]


@TEN
def test_the_page_says_what_the_numbers_are_measured_against(results):
    page = to_markdown(leaderboard(read_all([results])))

    assert "Chance 0.125; floor (no document) 0.100 ± " in page
    assert "ceiling (full attention) 0.850 ± " in page
    assert "points is found with 80% power for one comparison, unadjusted, by the row" in page
    assert "A1R2K1(random): mean 0.225, spread 0.026 over 20 seeds, from 0.200 to 0.250" in page
    assert "They are not the same σ." in page  # noqa: RUF001


def test_a_reference_without_a_budget_is_on_every_board_of_its_task(results, made):
    for header in (made.stack, made.random):
        six = evolve(header, budget=6, stack=header.stack.replace("K1", "K3"))
        made.write(results, six, made.right)
    quantised = evolve(made.full, role="reference", stack="quantised[bits=8]")
    made.write(results, quantised, made.right, kept=tuple(range(20)))
    boards = leaderboard(read_all([results])).boards

    assert [[row.label for row in board.references] for board in boards] == [
        ["quantised[bits=8]"],
        ["quantised[bits=8]"],
    ]


@TEN
def test_a_board_opens_with_what_it_found(results, made):
    """Of two rows one is far above random (all .225), the other is random's own."""
    weak = evolve(made.stack, stack="A1R2K1(weak)")
    made.write(results, weak, lambda n, _: n % 20 in (1, 6, 8, 14))
    page = to_markdown(leaderboard(read_all([results])))

    assert (
        "Of 2 rows 1 are better than their random blocks, 0 worse, the others not told apart "
        "from them (Holm, 5 %). In the best tier: A1R2K1(kri-d), generic probes."
    ) in page


def test_joint_right_answers_stand_in_the_table_of_other_scores(results):
    """± of em is over the five documents: half of mc's 0.25 / √5."""
    page = to_markdown(leaderboard(read_all([results])))

    assert "| row | em |" in page
    assert "| A1R2K1(kri-d), generic probes | 0.375 ± 0.056 |" in page
