"""Scores on log-probabilities made by hand."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kri_core.errors import ConfigError, EngineError
from kri_core.evaluation.tasks import (
    Agreement,
    Answer,
    Choice,
    LogProbs,
    Reading,
    Recall,
    Span,
    chance,
    scoring,
)
from kri_core.evaluation.tasks.needle import Needle8


def rows(*distributions):
    """Log-probabilities from probabilities."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(distributions, dtype=np.float32))


def test_of_all_options_the_likeliest_is_the_answer_and_a_tie_is_none():
    assert scoring.is_best([-1.0, -2.0, -3.0], 0) == 1.0
    assert scoring.is_best([-1.0, -2.0, -3.0], 1) == 0.0
    assert scoring.is_best([-1.0, -1.0, -3.0], 0) == 0.0
    assert scoring.is_best([-1.0, -1.0, -3.0], 1) == 0.0


def test_log_share_is_the_log_softmax_among_the_options():
    """Probabilities .2, .1 and .1 of all tokens are 1/2, 1/4 and 1/4 among these."""
    values = [log(0.2), log(0.1), log(0.1)]

    assert scoring.log_share(values, 0) == pytest.approx(log(1 / 2))
    assert scoring.log_share(values, 2) == pytest.approx(log(1 / 4))
    assert scoring.log_share([-2000.0, -2001.0], 0) == pytest.approx(-log(1 + np.exp(-1)))


def test_kl_is_from_dense_to_routed():
    """KL((1/2, 1/2) ‖ (1/4, 3/4)) = ½ ln 2 + ½ ln ⅔ = ln 2 − ½ ln 3; the reverse differs."""
    dense, routed = rows([0.5, 0.5]), rows([0.25, 0.75])

    assert scoring.mean_kl(dense, routed) == pytest.approx(log(2) - log(3) / 2, abs=1e-6)
    assert scoring.mean_kl(routed, dense) == pytest.approx(
        0.25 * log(0.5) + 0.75 * log(1.5), abs=1e-6
    )
    assert scoring.mean_kl(dense, dense) == 0.0
    assert scoring.mean_kl(rows([1, 0]), rows([0.5, 0.5])) == pytest.approx(log(2), abs=1e-6)
    two = scoring.mean_kl(rows([0.5, 0.5], [0.5, 0.5]), rows([0.25, 0.75], [0.5, 0.5]))
    assert two == pytest.approx((log(2) - log(3) / 2) / 2, abs=1e-6)  # a mean over positions


def test_top1_and_acceptance_count_positions_of_one_likeliest_token():
    dense = rows([0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4])
    routed = rows([0.6, 0.4], [0.7, 0.3], [0.9, 0.1], [0.9, 0.1])

    assert scoring.top1_agreement(dense, routed) == 0.75
    assert scoring.acceptance_length(dense, routed) == 2  # the third disagrees; the fourth is late
    assert scoring.acceptance_length(dense, dense) == 4
    assert scoring.acceptance_length(dense[2:], routed[2:]) == 0


def test_cover_counts_blocks_not_spans():
    """Blocks of 4: tokens 3 to 8 lie in blocks 0, 1 and 2; 6 and 7 in block 1 again."""
    evidence = (Span(3, 9), Span(6, 8))

    assert scoring.evidence_blocks(evidence, 4, 10) == {0, 1, 2}
    assert scoring.cover(evidence, (0, 5, 9), 4, 10) == pytest.approx(1 / 3)
    assert scoring.cover(evidence, (2, 1, 0), 4, 10) == 1.0
    assert scoring.cover((Span(4, 8),), (0, 2), 4, 10) == 0.0  # a span that fills a block exactly
    assert scoring.cover((Span(4, 8),), (1,), 4, 10) == 1.0
    assert scoring.cover((Span(6, 10),), (1,), 4, 2) == 1.0  # tokens 8 and 9 are the tail's
    assert scoring.cover((Span(8, 10),), (), 4, 2) == 1.0


def test_an_item_scores_the_selection_where_its_evidence_is_known():
    item = Answer("i", (1,), (2,), text="q", evidence=(Span(3, 9),))

    assert item.covered((0, 1, 7), 4, 10) == {"cover": pytest.approx(2 / 3)}
    assert Answer("i", (1,), (2,), text="q").covered((0,), 4, 10) == {}


def test_chance_is_the_mean_over_items_and_only_of_what_all_can_guess():
    two, four = (Choice("i", (1,), [(n,) for n in range(count)], 0, text="") for count in (2, 4))

    assert chance([two, four]) == {"mc": 0.375}
    assert chance([two, Answer("i", (1,), (2,), text="q")]) == {}
    assert chance([]) == {}


def test_joint_is_over_all_subsets_of_a_document_s_questions():
    """3 of 4 right: C(3,2)/C(4,2) = 1/2 of the pairs, none of the fours."""
    assert scoring.joint([1.0, 1.0, 0.0, 1.0], 2) == 0.5
    assert scoring.joint([1.0, 1.0, 0.0, 1.0], 4) == 0.0
    assert scoring.joint([1.0] * 4, 4) == 1.0


def test_a_document_s_items_make_its_joint_scores():
    items = [{"em": 1.0}] * 6 + [{"em": 0.0}] * 2

    assert Needle8().per_document(items) == {
        "joint-em-2": 15 / 28,  # C(6,2) / C(8,2)
        "joint-em-4": 15 / 70,
    }
    assert Needle8().per_document([{"em": 1.0}] * 3) == {"joint-em-2": 1.0}


RECALL = Recall("i", (7, 8, 9), ((1, 2, 5), (1, 3, 5)), 0, text="q")


def test_recall_reads_what_all_options_share_and_weighs_what_differs():
    """The options share token 1; 2 is the right one, and 5 follows both."""
    (reading,) = RECALL.readings()

    assert reading == Reading((7, 8, 9, 1, 2, 5), answer=4, among=(2, 3))
    assert (reading.start, reading.num_rows) == (1, 5)
    assert RECALL.chance == {"mc": 0.5}


def recall_rows(first, second):
    """Five rows: after 8, 9, 1 (predicts 2), 2 (predicts 5) and 5."""
    uniform = [0.1] * 10
    at_first, at_second = [0.0] * 10, [0.0] * 10
    for row, given_ in ((at_first, first), (at_second, second)):
        for token, probability in given_.items():
            row[token] = probability
    return rows(uniform, uniform, at_first, at_second, uniform)


@pytest.mark.parametrize(
    ("first", "second", "mc", "em", "share"),
    [
        ({2: 0.6, 3: 0.2, 0: 0.2}, {5: 0.9, 4: 0.1}, 1.0, 1.0, 0.75),
        ({2: 0.6, 3: 0.2, 0: 0.2}, {5: 0.4, 4: 0.6}, 1.0, 0.0, 0.75),  # the second digit is wrong
        ({2: 0.3, 3: 0.1, 0: 0.6}, {5: 0.9, 4: 0.1}, 1.0, 0.0, 0.75),  # no option is likeliest
        ({2: 0.2, 3: 0.8}, {5: 0.9, 4: 0.1}, 0.0, 0.0, 0.2),
    ],
)
def test_recall_scores(first, second, mc, em, share):
    (reading,) = RECALL.readings()
    routed = LogProbs.from_rows(reading, recall_rows(first, second))
    scores = RECALL.score([routed])

    assert (scores["mc"], scores["em"]) == (mc, em)
    assert scores["logp"] == pytest.approx(log(share), abs=1e-6)
    assert "kl" not in scores


def test_recall_compares_its_five_positions_with_dense():
    """Only one position of five differs: the KL of above, over five."""
    (reading,) = RECALL.readings()
    dense = LogProbs.from_rows(reading, recall_rows({2: 0.5, 3: 0.5}, {5: 1.0}))
    routed = LogProbs.from_rows(reading, recall_rows({2: 0.25, 3: 0.75}, {5: 1.0}))

    kl = RECALL.score([routed], [dense])["kl"]
    assert kl == pytest.approx((log(2) - log(3) / 2) / 5, abs=1e-6)


def test_scores_that_need_whole_distributions_are_left_out_without_them():
    """A server tells log-probabilities of single tokens."""
    told = LogProbs(scored=(-0.5, -0.1), best=(2, 5), among=(-0.5, -1.6))

    assert RECALL.score([told], [told]) == {
        "mc": 1.0,
        "em": 1.0,
        "logp": pytest.approx(-log(1 + np.exp(-1.1))),
    }
    item = Agreement("i", (1,), (2,), 1, text="")
    assert item.score([told, told], [told, told]) == {}
    assert item.score([told, told]) == {}


def test_a_choice_adds_up_all_tokens_of_each_option():
    """.5 × .5 against .4: the longer option has the better tokens and loses."""
    item = Choice("i", (9,), ((1, 2), (3,)), 1, text="q")
    long, short = item.readings()
    first = [0.0, 0.5, 0.0, 0.4, 0.1]
    after = [0.5, 0.0, 0.5, 0.0, 0.0]
    routed = [
        LogProbs.from_rows(long, rows(first, after, after)),
        LogProbs.from_rows(short, rows(first, after)),
    ]
    scores = item.score(routed, routed)

    assert scores["mc"] == 1.0
    assert scores["logp"] == pytest.approx(log(0.4 / (0.4 + 0.25)), abs=1e-6)
    assert scores["kl"] == 0.0


def test_an_answer_is_right_if_each_token_is_the_likeliest():
    item = Answer("i", (0,), (1, 2), text="q")
    (reading,) = item.readings()
    good = LogProbs.from_rows(reading, rows([0.2, 0.8, 0], [0, 0.5, 0.5], [1, 0, 0]))
    better = LogProbs.from_rows(reading, rows([0.2, 0.8, 0], [0, 0.2, 0.8], [1, 0, 0]))

    assert item.score([better])["em"] == 1.0
    assert item.score([good])["em"] == 0.0  # a tie: the earlier token is the likeliest
    assert item.score([good])["nll"] == pytest.approx(-(log(0.8) + log(0.5)) / 2, abs=1e-6)


def test_a_continuation_is_scored_behind_its_first_token():
    item = Recall("i", (0,), ((0,), (1,)), 0, text="q", continuation=(0, 1, 1))
    own, following = item.readings()
    answers = [
        LogProbs.from_rows(own, rows([0.5, 0.5], [1, 0])),
        LogProbs.from_rows(following, rows([0.5, 0.5], [0.75, 0.25], [1, 0])),
    ]

    assert item.score(answers)["nll"] == pytest.approx((log(2) + log(4)) / 2, abs=1e-6)
    assert "nll" not in RECALL.score([LogProbs((-1.0, -1.0), (2, 5), (-1.0, -2.0))])


def test_agreement_takes_kl_from_the_text_and_acceptance_from_the_draft():
    item = Agreement("i", (0,), (1,), 3, text="")
    text, draft = item.readings()
    same, other = [0.9, 0.1], [0.1, 0.9]
    routed = [
        LogProbs.from_rows(text, rows(same, same)),
        LogProbs.from_rows(draft, rows(same, other, same)),
    ]
    dense = [
        LogProbs.from_rows(text, rows(same, other)),
        LogProbs.from_rows(draft, rows(same, other, other)),
    ]
    scores = item.score(routed, dense)

    assert (draft.start, draft.num_rows) == (0, 3)
    assert (scores["top1"], scores["acceptance"]) == (0.5, 2)
    assert scores["kl"] == pytest.approx(0.8 * log(9) / 2, abs=1e-6)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=6), st.floats(-5, 5))
def test_shares_sum_to_one_and_a_shift_of_all_changes_nothing(values, shift):
    shares = [scoring.log_share(values, at) for at in range(len(values))]
    shifted = [scoring.log_share([value + shift for value in values], 0)]

    assert np.exp(shares).sum() == pytest.approx(1)
    assert shifted[0] == pytest.approx(shares[0], abs=1e-9)


def test_logits_nan_and_rows_of_other_positions_are_refused():
    (reading,) = Answer("i", (0,), (1,), text="q").readings()

    with pytest.raises(EngineError, match=r"wants 2 rows \[position, vocabulary\]; got shape"):
        LogProbs.from_rows(reading, rows([0.5, 0.5]))
    logits = np.array([[0.0, 0.0], [1.0, 3.0]])
    with pytest.raises(EngineError, match=r"row 0 of a reading has a total .* of 0.693, not 0;"):
        LogProbs.from_rows(reading, logits)
    with pytest.raises(EngineError, match=r"row 1 of a reading has a total .* of nan, not 0; give"):
        LogProbs.from_rows(reading, np.log(np.array([[0.5, 0.5], [np.nan, 0.5]])))


def test_a_reading_needs_a_token_before_its_answer_and_one_of_it():
    wanted = "a reading of 2 tokens has an answer that starts at {}; feed a token or more before it"
    for answer in (0, 2, 3):
        with pytest.raises(ConfigError, match=wanted.format(answer)):
            Reading((1, 2), answer=answer)
    assert Reading((1, 2), answer=2, draft=4).num_rows == 4
    with pytest.raises(ConfigError, match=wanted.format(3)):
        Reading((1, 2), answer=3, draft=4)
