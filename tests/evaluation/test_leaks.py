"""A planted lie: a selector that peeks. Blocks and covers by hand, 10 documents of 4 items."""

import pytest
from attrs import evolve

from kri_core.evaluation.board import leaderboard
from kri_core.evaluation.board_text import to_markdown
from kri_core.evaluation.leaks import AWARE, BLIND, NO_ORACLE, NO_ROOM, TOO_FEW, question_blind
from kri_core.evaluation.recording import recording
from kri_core.evaluation.records import Record
from kri_core.evaluation.verifying import read_all


@pytest.fixture
def num_items():
    return 40


def same(_number):
    return (0, 7, 18, 19)


def its_own(number):
    return (0, 7 + number % 4, 18, 19)


def write(made, folder, header, cover, blocks):
    """A record whose cover and blocks are functions of the item's number and the seed."""
    with recording(folder, header, "2026-11-30") as recorder:
        for seed in header.seeds:
            for number in range(header.num_items):
                result = made.result(number, number % 2, seed, blocks(number))
                scores = {**result.scores, "cover": cover(number, seed)}
                recorder.append(evolve(result, scores=scores))


def half(number, _seed):
    """Half of each document's evidence."""
    return float(number % 2)


def all_of_it(_number, _seed):
    return 1.0


def one_in_ten(number, seed):
    return float((number + seed) % 10 == 0)


def first_eight(number, _seed):
    """All evidence of eight documents, of the others that of their first two items."""
    return float(number < 32 or number % 4 < 2)


def first_seven(number, _seed):
    return float(number < 28 or number % 4 < 2)


def row_of(
    made,
    folder,
    cover,
    blocks,
    references=("oracle-doc", "oracle"),
    doc_cover=all_of_it,
    null_cover=one_in_ten,
):
    """The board's row for a stack of this cover beside random, full, floor and the oracles."""
    write(made, folder, made.stack, cover, blocks)
    write(made, folder, made.random, null_cover, its_own)
    for header in (made.full, made.floor):
        write(made, folder, header, all_of_it, same)
    for name in references:
        header = evolve(
            made.stack, role="reference", stack=f"A1R2K1({name})", probe_set=None, priors=None
        )
        write(made, folder, header, doc_cover if name == "oracle-doc" else all_of_it, its_own)
    found = leaderboard(read_all([folder]))
    return found.boards[0].rows[0], to_markdown(found)


def test_a_blind_selector_that_peeks_is_flagged(tmp_path, made):
    row, page = row_of(made, tmp_path, all_of_it, same)

    assert row.leak.flag == BLIND
    assert (
        "⚑ A1R2K1(kri-d), generic probes keeps as much of the evidence as oracle-doc, which is "
        "told where it is, of the documents of which that keeps all: look for a leak."
    ) in page
    assert "A1R2K1(kri-d), generic probes ⚑ |" in page


def test_an_honest_blind_selector_is_not_flagged(tmp_path, made):
    """Far above random, but half of what the oracle keeps."""
    row, page = row_of(made, tmp_path, half, same)

    assert (row.leak.unchecked, row.leak.flag) == (None, None)
    assert "⚑" not in page


def test_a_row_that_keeps_what_random_keeps_is_not_flagged(tmp_path, made):
    """Where the budget is most of the document, equal to the oracle is no sign of anything."""
    row, _ = row_of(made, tmp_path, all_of_it, same, null_cover=all_of_it)

    assert (row.leak.unchecked, row.leak.flag) == (None, None)


@pytest.mark.parametrize("cover", [half, lambda number, _: float(number % 4 > 0)])
def test_a_row_that_beats_an_oracle_without_room_is_not_flagged_and_the_board_says_so(
    tmp_path, made, cover
):
    """`oracle-doc` keeps the first of four pieces; the row two or three others, of all five."""
    row, page = row_of(made, tmp_path, cover, same, doc_cover=lambda n, _: float(n % 4 == 0))

    assert (row.leak.unchecked, row.leak.flag) == (NO_ROOM, None)
    assert (
        "⚑ Not checked for a leak, as oracle-doc of their pins and budget has all evidence "
        "of under 8 documents: A1R2K1(kri-d), generic probes."
    ) in page


def test_where_the_oracle_has_room_in_eight_documents_these_are_looked_at(tmp_path, made):
    """Half of these eight, and of the others three pieces of four where the oracle keeps two."""

    def honest(number, _seed):
        return float(number % 2 if number < 32 else number % 4 > 0)

    row, _ = row_of(made, tmp_path / "honest", honest, same, doc_cover=first_eight)
    peeking, _ = row_of(made, tmp_path / "peeking", first_eight, same, doc_cover=first_eight)
    unsure, _ = row_of(made, tmp_path / "unsure", first_eight, same, doc_cover=first_seven)

    assert (row.leak.unchecked, row.leak.flag) == (None, None)
    assert peeking.leak.flag == BLIND
    assert (unsure.leak.unchecked, unsure.leak.flag) == (NO_ROOM, None)


@pytest.mark.parametrize("blocks", [same, its_own])
@pytest.mark.parametrize(("num_items", "found"), [(28, TOO_FEW), (32, None)])
def test_few_documents_are_not_checked_and_the_board_says_so(tmp_path, made, blocks, found):
    """A selector that peeks in seven documents, and the control in eight."""
    row, page = row_of(made, tmp_path, all_of_it, blocks)

    assert row.leak.unchecked == found
    assert (row.leak.flag is None) == (found is not None)
    said = "Not checked for a leak, as it takes 8 documents: A1R2K1(kri-d), generic probes."
    assert (said in page) == (found is not None)


def test_a_row_that_reads_the_question_is_asked_for_in_other_words(tmp_path, made):
    """Retrieval by the question can honestly find all that `oracle` is told."""
    row, page = row_of(made, tmp_path, all_of_it, its_own)

    assert row.leak.flag == AWARE
    assert "reading the question can do so honestly" in page


def test_a_question_aware_row_may_keep_more_than_oracle_doc(tmp_path, made):
    row, _ = row_of(made, tmp_path, half, its_own, doc_cover=lambda n, _: 0.25)

    assert row.leak.flag is None


def test_where_a_document_has_one_item_no_row_is_taken_for_blind(made):
    """As in niah-copy: the same blocks for every item of a document says nothing there."""
    results = tuple(made.result(4 * document, 1) for document in range(5))
    record = Record("r.jsonl", "2026-11-30", made.stack, results, "0" * 16)
    again = evolve(record.results[0], id="d0/q1")

    assert not question_blind(record)
    assert question_blind(evolve(record, results=(*record.results, again)))


@pytest.mark.parametrize("references", [(), ("oracle",)])
def test_without_its_oracle_nothing_is_flagged_and_the_board_says_so(tmp_path, made, references):
    row, page = row_of(made, tmp_path, all_of_it, same, references)

    assert (row.leak.unchecked, row.leak.flag) == (NO_ORACLE, None)
    assert (
        "Not checked for a leak, as no oracle with their pins or no evidence is recorded: "
        "A1R2K1(kri-d), generic probes."
    ) in page
