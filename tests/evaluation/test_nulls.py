"""The random null over seeds, and gap recovery with its interval."""

import pytest

from kri_core.errors import ConfigError
from kri_core.evaluation.nulls import SeedSpread, gap_recovery
from kri_core.evaluation.statistics import Sample


def line(*documents):
    """One item per document."""
    return Sample.of((f"{n:02}", f"d{n:02}", float(value)) for n, value in enumerate(documents))


def test_the_null_has_the_mean_and_the_spread_of_its_seeds():
    assert SeedSpread.of([0.1, 0.3, 0.2]) == SeedSpread(
        pytest.approx(0.2), pytest.approx(0.1), 0.1, 0.3, 3
    )


def test_one_seed_has_no_spread():
    with pytest.raises(ConfigError, match="a spread over seeds needs at least two; got 1"):
        SeedSpread.of([0.2])


def test_half_of_the_gap_in_every_document_is_a_half_for_sure():
    found = gap_recovery(line(*[0.5] * 9), line(*[0.25] * 9), line(*[0.75] * 9))

    assert (found.share, found.low, found.high) == (0.5, 0.5, 0.5)


def test_the_interval_is_that_of_the_gain_where_the_gap_is_one_everywhere():
    """A resampled share is Binomial(25, .4)/25: 5 and 15, by hand in test_statistics."""
    gains = (1,) * 10 + (0,) * 15
    found = gap_recovery(line(*gains), line(*(0,) * 25), line(*(1,) * 25))

    assert (found.share, found.low, found.high) == (0.4, 0.2, 0.6)


def test_row_and_gap_are_resampled_together():
    """Gains of exactly half a gap that itself varies: the ratio does not."""
    gaps = [0.2, 0.9, 0.5, 0.4, 0.7, 0.8, 0.3, 0.6]
    found = gap_recovery(line(*(gap / 2 for gap in gaps)), line(*(0,) * 8), line(*gaps))

    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.5))


def test_more_than_full_attention_is_more_than_one():
    found = gap_recovery(line(*[0.9] * 5), line(*[0.1] * 5), line(*[0.5] * 5))

    assert found.share == pytest.approx(2.0)


def test_without_a_sure_gap_there_is_no_recovery():
    wave = [0.5, -0.4] * 8
    found = gap_recovery(line(*(1,) * 16), line(*(0,) * 16), line(*wave))

    assert (found.share, found.low, found.high) == (None, None, None)
    assert found.undefined == "full less random is +0.050, and its interval includes 0"


def test_full_attention_below_random_leaves_no_gap():
    found = gap_recovery(line(*(1,) * 9), line(*(1,) * 9), line(*[0.5] * 9))

    assert found.undefined == "full attention is below random (-0.500)"
