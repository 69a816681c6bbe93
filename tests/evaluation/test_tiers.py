"""Tiers: who cannot be told from whom."""

from itertools import permutations

from kri_core.evaluation.statistics import Sample
from kri_core.evaluation.tiers import tiers


def row(right, *, shift=0, step=3):
    """200 items in 25 documents, so many right, spread over the documents from `shift` on."""
    hits = {(shift + step * n) % 200 for n in range(right)}
    assert len(hits) == right
    return Sample.of((f"{n:03}", f"d{n // 8:02}", float(n in hits)) for n in range(200))


def test_53_and_51_of_200_share_a_tier():
    """CASES 41."""
    assert tiers([row(53), row(51, shift=70)]) == (1, 1)


def test_150_and_50_of_200_do_not():
    """A control of the above."""
    assert tiers([row(50, shift=70), row(150)]) == (2, 1)


def test_an_exact_tie_is_one_tier_in_whatever_order():
    """CASES 41: no name takes part, and no place in the list."""
    one, other, low = row(53), row(53, shift=90), row(5)

    assert one.mean == other.mean
    for rows in permutations([one, other, low]):
        assert dict(zip(rows, tiers(rows), strict=True)) == {one: 1, other: 1, low: 2}


def line(*documents):
    """One item per document."""
    return Sample.of((f"{n:02}", f"d{n:02}", value) for n, value in enumerate(documents))


def test_a_row_joins_the_tier_of_the_best_it_does_not_differ_from():
    """The middle one is like both; the last differs from the best, and that is what counts."""
    wave = [0.4 * (-1) ** n for n in range(20)]
    best = line(*(1.0 for _ in wave))
    middle = line(*(0.9 + w for w in wave))
    last = line(*(0.8 for _ in wave))

    assert tiers([best, middle, last]) == (1, 1, 2)
    assert tiers([middle, last]) == (1, 1)


def test_a_noisy_row_may_stand_above_a_better_one():
    noisy = line(*(0.5 + 1.5 * (-1) ** n for n in range(20)))
    steady = line(*(0.8 for _ in range(20)))
    best = line(*(1.0 for _ in range(20)))

    assert tiers([best, steady, noisy]) == (1, 2, 1)


def test_a_tie_stands_or_falls_together_whatever_its_order():
    """The noisy one of the tie is like the best, the steady one is not."""
    best = line(*(1.0 for _ in range(20)))
    steady = line(*(0.75 for _ in range(20)))
    noisy = line(*(0.75 + 1.5 * (-1) ** n for n in range(20)))
    assert steady.mean == noisy.mean

    assert tiers([best, steady, noisy]) == tiers([best, noisy, steady]) == (1, 1, 1)
    assert tiers([best, steady]) == (1, 2)  # the control


def test_a_tie_at_the_top_is_the_best_as_a_whole():
    steady = line(*(1.0 for _ in range(20)))
    noisy = line(*(1.0 + 1.5 * (-1) ** n for n in range(20)))
    lower = line(*(0.75 for _ in range(20)))

    assert tiers([steady, noisy, lower]) == tiers([noisy, steady, lower]) == (1, 1, 1)
    assert tiers([steady, lower]) == (1, 2)  # the control
