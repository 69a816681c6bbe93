"""Power against published values, and the refusals."""

import math

import pytest

from kri_core.errors import ConfigError
from kri_core.evaluation.power import (
    ASSUMED_SPREAD,
    PowerAnalysis,
    detectable_effect,
    groups_needed,
    power,
)


def test_power_is_that_of_g_power():
    """Matched pairs, dz = .5, two-sided 5 %: G*Power's manual needs 34 pairs, power .8077775."""
    assert power(0.5, 34, 1.0) == pytest.approx(0.8077775, abs=1e-6)
    assert groups_needed(0.5, 1.0) == 34
    assert power(0.5, 33, 1.0) < 0.8


def test_power_of_no_effect_is_the_level():
    assert power(0.0, 25, 0.3) == pytest.approx(0.05)


def test_power_has_no_sign_and_depends_on_effect_over_spread_alone():
    assert power(-0.05, 25, 0.2) == power(0.05, 25, 0.2) == pytest.approx(power(0.5, 25, 2.0))


def test_the_detectable_effect_is_blooms_multiplier_within_a_thousandth():
    """Bloom 1995: (t.975 + t.8) · spread / √documents, with 24 degrees 2.0639 + .8569."""
    assert detectable_effect(25, 0.2) == pytest.approx(2.9208 * 0.2 / 5, rel=1e-3)


@pytest.mark.parametrize("documents", [2, 3, 10, 25, 400, 100_000])
def test_the_detectable_effect_is_found_in_four_runs_of_five(documents):
    effect = detectable_effect(documents, 0.2)

    assert power(effect, documents, 0.2) == pytest.approx(0.8, abs=1e-6)
    assert power(100 * effect, documents, 0.2) == pytest.approx(1.0)


def test_power_is_what_a_simulation_finds():
    """4000 runs of 25 documents with a true difference of 10 points and a spread of 18."""
    import numpy as np

    runs = np.random.default_rng(1).normal(0.10, 0.18, (4000, 25))
    t = runs.mean(1) / runs.std(1, ddof=1) * 5
    found = np.mean(np.abs(t) > 2.0639)  # t(.975, 24)

    assert power(0.10, 25, 0.18) == pytest.approx(found, abs=0.025)


def test_five_points_take_over_a_hundred_documents():
    """With the spread of needle8, 3.7 points over 25 documents: 25 of them miss three of four."""
    assert pytest.approx(0.185) == ASSUMED_SPREAD
    found = PowerAnalysis.of(0.05, 25, ASSUMED_SPREAD)

    assert found.power < 0.27
    assert found.groups_needed == 110
    assert found.detectable_effect == pytest.approx(2.9208 * 0.185 / 5, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: power(0.05, 1, 0.2), "a comparison over documents needs at least two; got 1"),
        (lambda: power(0.05, 25, 0.0), "the spread over documents must be above 0; got 0.0"),
        (lambda: detectable_effect(25, math.inf), "must be above 0; got inf: give one that was"),
        (lambda: groups_needed(0.0, 0.2), "an effect of 0 cannot be detected"),
        (lambda: groups_needed(1e-5, 1.0), "takes over 1000000 documents; give a larger effect"),
    ],
)
def test_what_cannot_be_planned_is_refused(call, said):
    with pytest.raises(ConfigError, match=said):
        call()
