"""McNemar and Holm against published values, and what they must not be taken for."""

from math import comb

import pytest

from kri_core.evaluation.significance import McNemar, holm, mcnemar
from kri_core.evaluation.statistics import Sample


def rows(only_first, only_second, both=3):
    """Two rows of 0s and 1s with these discordant items."""
    pairs = [(1, 0)] * only_first + [(0, 1)] * only_second + [(1, 1), (0, 0)] * both
    return [
        Sample.of((f"{n:04}", f"d{n % 5}", float(pair[side])) for n, pair in enumerate(pairs))
        for side in (0, 1)
    ]


def test_exact_mcnemar_of_the_approval_ratings():
    """Agresti 1990, page 350: 86 against 150; exact2x2 in R gives p = 3.716e-05."""
    assert mcnemar(*rows(86, 150)).p == pytest.approx(3.716e-05, abs=5e-9)


@pytest.mark.parametrize(("wins", "losses"), [(7, 20), (1, 5), (3, 3), (0, 1)])
def test_exact_mcnemar_is_a_two_sided_binomial(wins, losses):
    total = wins + losses
    tail = sum(comb(total, k) for k in range(min(wins, losses) + 1))

    assert mcnemar(*rows(wins, losses)) == McNemar(
        wins, losses, pytest.approx(min(1, 2 * tail / 2**total))
    )


def test_it_is_not_the_mid_p():
    """7:20, EVAL's xa25 row: the mid-p leaves out half of the chance of 7 itself, twice."""
    mid = 2 * sum(comb(27, k) for k in range(8)) / 2**27 - comb(27, 7) / 2**27

    assert mcnemar(*rows(7, 20)).p > mid + 0.006


def test_the_published_53_against_43_is_no_five_sigma():
    """At the most: ten items only the first has right, none only the second; 5 σ is p < 6e-7."""
    assert mcnemar(*rows(10, 0, both=43)).p == pytest.approx(2 / 1024)


def test_no_discordant_item_is_no_evidence():
    assert mcnemar(*rows(0, 0)) == McNemar(0, 0, 1.0)


def test_scores_between_right_and_wrong_have_no_mcnemar():
    first, second = rows(2, 1)
    half = Sample(first.ids, first.groups, (0.5, *first.values[1:]))

    assert mcnemar(half, second) is None


def test_holm_of_published_values():
    """R's p.adjust(c(.01, .04, .03, .005), 'holm'), the example of many a textbook."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx((0.04, 0.06, 0.06, 0.06))


def test_holm_stays_below_one_and_takes_none():
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_holm_keeps_the_chance_of_any_false_claim():
    """2000 boards of 20 rows without an effect: one in 20 boards claims, and 13 without Holm."""
    import numpy as np

    boards = np.random.default_rng(0).random((2000, 20))
    adjusted = np.mean([min(holm(list(board))) <= 0.05 for board in boards])

    assert 0.035 < adjusted < 0.065
    assert np.mean(boards.min(1) <= 0.05) == pytest.approx(1 - 0.95**20, abs=0.03)
