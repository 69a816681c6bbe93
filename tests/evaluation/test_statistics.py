"""Means, errors and intervals over documents, by hand, from the literature and by simulation."""

import math
import subprocess
import sys

import pytest

from kri_core.errors import ConfigError
from kri_core.evaluation.statistics import (
    Sample,
    estimate,
    p_value,
    resampled_means,
    standard_error,
    widened_tail,
)

# Student 1908, Biometrika 6: hours of sleep gained by ten patients, the second drug less the first
SLEEP = (1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4)


def sample(*documents):
    """Documents d0, d1, … of these values."""
    return Sample.of(
        (f"d{document:03}-{item:03}", f"d{document:03}", float(value))
        for document, values in enumerate(documents)
        for item, value in enumerate(values)
    )


def test_the_mean_is_over_items_and_the_error_over_documents():
    """Documents' means 1, ½ and 0: their spread is ½."""
    found = estimate(sample((1, 1), (1, 0), (0, 0)))

    assert found.mean == 0.5
    assert found.error == pytest.approx(0.5 / math.sqrt(3))
    assert (found.num_items, found.num_groups) == (6, 3)


def test_documents_of_unequal_size_count_by_their_items():
    """Mean ¾; residuals 3 − 2¼ and 0 − ¾; √(2 · (9/16 + 9/16)) / 4."""
    assert standard_error(sample((1, 1, 1), (0,))) == pytest.approx(0.375)


def test_the_error_is_that_of_the_published_t_test():
    """R, t.test(extra ~ group, sleep, paired = TRUE): t = −4.0621, p = .002833."""
    sleep = sample(*((hours,) for hours in SLEEP))
    found = estimate(sleep)

    assert found.mean / found.error == pytest.approx(4.0621, abs=1e-4)
    # Its t interval is .70 to 2.46; the bootstrap leans to the patient with 4.6 hours.
    assert 0.7 < found.low < 1.0
    assert 2.3 < found.high < 2.9


def test_the_widened_tail_is_that_of_the_formula():
    """t(.975, 24) = 2.0639, times √(25/24) 2.1065; Φ(−2.1065) = .0176."""
    assert widened_tail(25) == pytest.approx(0.01758, abs=1e-5)
    assert widened_tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_the_interval_is_the_quantiles_of_the_exact_resampling_distribution():
    """Of 25 documents with 10 ones a resampled sum is Binomial(25, .4)."""
    found = estimate(sample(*((value,) for value in (1,) * 10 + (0,) * 15)))

    tail = 0.01758
    chances = [math.comb(25, k) * 0.4**k * 0.6 ** (25 - k) for k in range(26)]
    below = [sum(chances[: k + 1]) for k in range(26)]
    low = next(k for k in range(26) if below[k] >= tail)
    high = next(k for k in range(26) if below[k] >= 1 - tail)
    assert (low, high) == (5, 15)
    assert (found.low, found.high) == (low / 25, high / 25)


def test_questions_of_one_document_do_not_narrow_the_interval():
    """Ten documents, their ten questions all alike: there are ten draws of luck, not 100."""
    documents = [(value,) * 10 for value in (1, 1, 1, 1, 1, 0, 0, 0, 0, 0)]
    clustered = estimate(sample(*documents))
    once = estimate(sample(*((values[0],) for values in documents)))
    naive = estimate(sample(*((value,) for values in documents for value in values)))

    assert (clustered.low, clustered.high) == (once.low, once.high)
    assert clustered.error == pytest.approx(math.sqrt(10 / 9 * 0.25 / 10))
    assert naive.error == pytest.approx(math.sqrt(100 / 99 * 0.25 / 100))
    assert clustered.high - clustered.low > 2.5 * (naive.high - naive.low)


def test_an_interval_covers_the_truth_as_often_as_it_says_and_a_naive_one_does_not():
    """300 times 25 documents of 8 questions whose chance of a right answer differs by document."""
    import numpy as np

    random = np.random.default_rng(5)
    covered = naively = 0
    for _ in range(300):
        chances = random.beta(1, 1, 25)  # mean ½
        answers = random.random((25, 8)) < chances[:, None]
        clustered = estimate(sample(*answers), draws=1000)
        naive = estimate(sample(*answers.reshape(-1, 1)), draws=200)
        covered += clustered.low <= 0.5 <= clustered.high
        naively += naive.low <= 0.5 <= naive.high

    assert 0.92 <= covered / 300 <= 0.98
    assert naively / 300 < 0.85


def test_without_widening_few_documents_would_cover_less():
    """A control: the plain 2.5 % percentiles of eight documents."""
    import numpy as np

    random = np.random.default_rng(6)
    widened = plain = 0
    for _ in range(300):
        found = sample(*random.normal(size=(8, 1)))
        means = resampled_means((found,), 1000, 1)[:, 0]
        for tail, cover in ((widened_tail(8), "widened"), (0.025, "plain")):
            low, high = np.quantile(means, (tail, 1 - tail))
            if cover == "widened":
                widened += low <= 0 <= high
            else:
                plain += low <= 0 <= high

    assert widened / 300 >= 0.92
    assert plain / 300 < 0.91


def test_an_estimate_is_the_same_in_every_process_and_order():
    code = (
        "from kri_core.evaluation.statistics import Sample, estimate\n"
        "items = [(f'{n:03}', f'd{n % 7}', float(n * n % 5)) for n in range(50)]\n"
        "print(estimate(Sample.of(items)), estimate(Sample.of(reversed(items))))"
    )
    runs = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed})
        for seed in ("0", "1")
    }

    assert len(runs) == 1
    first, second = runs.pop().decode().split(") ")
    assert f"{first})" == second.strip()


def test_another_seed_gives_another_interval():
    """A control of the above."""
    found = sample(*((hours,) for hours in SLEEP))

    assert estimate(found, seed=1) != estimate(found, seed=2)


def test_p_is_that_of_the_published_t_test():
    """R, t.test(extra ~ group, sleep, paired = TRUE)."""
    assert p_value(sample(*((hours,) for hours in SLEEP))) == pytest.approx(0.002833, abs=5e-7)


def test_p_counts_documents_not_questions():
    """Asking each patient's doctor ten times makes nothing surer."""
    once, often = (sample(*((hours,) * n for hours in SLEEP)) for n in (1, 10))

    assert p_value(often) == pytest.approx(p_value(once))


def test_p_of_no_difference_is_one_and_of_the_same_one_everywhere_not_zero():
    assert p_value(sample(*((0,),) * 25)) == 1.0
    assert p_value(sample(*((1,),) * 25)) == 2**-24


def test_a_paired_difference_is_taken_item_by_item():
    """Paired, a constant shift has no error, however much the documents differ."""
    weak, strong = sample((0, 1), (2, 7)), sample((1, 2), (3, 8))

    assert strong.minus(weak).values == (1, 1, 1, 1)
    assert estimate(strong.minus(weak)).error == 0
    assert estimate(strong).error > 1


def test_what_rounding_leaves_is_no_error():
    """1.1 − 1 and 0.1 − 0 are not quite equal."""
    more, less = sample((1.1,), (0.1,), (0.1,)), sample((1,), (0,), (0,))

    assert len(set(more.minus(less).values)) == 2
    assert estimate(more.minus(less)).error == 0


def test_equal_counts_tie_exactly():
    """0.1 ten times is 1 when summed exactly; added up it is not."""
    assert sample(*((0.1,),) * 10).mean == 0.1
    assert sum([0.1] * 10) / 10 != 0.1


def test_samples_of_other_items_are_not_paired():
    mine, theirs = sample((1, 0), (1,)), sample((1, 0), (1, 0))

    with pytest.raises(ConfigError, match="same items on both sides; 1 are on one side"):
        theirs.minus(mine)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([("a", "d0", 1.0), ("a", "d1", 0.0)], "an item is there twice"),
        ([("a", "d0", 1.0), ("b", "d0", 0.0)], "needs at least two; got 1: evaluate more"),
    ],
)
def test_a_sample_is_valid_from_birth(items, said):
    with pytest.raises(ConfigError, match=said):
        Sample.of(items)
