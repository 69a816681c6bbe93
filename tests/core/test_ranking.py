"""How scores become an order: norms, pooling and detrending, worked out by hand.

Every check takes the module under test, so that it also runs on the planted bugs.
"""

import math
from itertools import product

import pytest
import torch

from kri_core import BlockScores, ConfigError, Split, ranking
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.testing import is_noticed, plant_bug


def pooled(maths, values, split=None, **params):
    scores = BlockScores(torch.tensor(values, dtype=torch.float32))
    split = split or Split((), tuple(range(scores.num_blocks)), (), 1)
    return maths.Ranking(**params).pooled(scores, split).tolist()


def best(maths, values, count, **params):
    scores = BlockScores(torch.as_tensor(values, dtype=torch.float32).reshape(1, 1, -1))
    split = Split((), tuple(range(scores.num_blocks)), (), count)
    return sorted(maths.Ranking(**params).order(scores, split)[:count])


# Norms and pooling


def check_the_default_is_upstreams_mean(maths):
    values = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(
        torch.tensor(pooled(maths, values.tolist())), values.float().mean((0, 1))
    )
    assert maths.Ranking() == maths.Ranking(norm="none", pool="mean", detrend=0)


def check_the_layer_of_the_largest_scale_decides_unless_layers_are_scaled(maths):
    """Layers (0, 0, 3) and (200, 100, 0): plain means follow the second."""
    layers = [[[0.0, 0.0, 3.0]], [[200.0, 100.0, 0.0]]]

    assert pooled(maths, layers) == [100.0, 50.0, 1.5]
    assert pooled(maths, layers, norm="l1") == pytest.approx([1 / 3, 1 / 6, 1 / 2])
    assert pooled(maths, layers, pool="max") == [200.0, 100.0, 3.0]


def check_zscore_is_by_layer_and_head_with_the_population_deviation(maths):
    """(1, 3) has mean 2 and deviation 1; (10, 10) has none and says nothing."""
    assert pooled(maths, [[[1.0, 3.0], [10.0, 10.0]]], norm="zscore") == [-0.5, 0.5]
    assert pooled(maths, [[[1.0, 3.0], [10.0, 10.0]]], norm="zscore", pool="max") == [0.0, 1.0]


def check_rank_is_the_mean_place_among_ties_over_the_number_of_blocks(maths):
    """Places 1, (2 + 3)/2 twice, 4, each over 4."""
    assert pooled(maths, [[[-7.0, 0.5, 0.5, 1e6]]], norm="rank") == [0.25, 0.625, 0.625, 1.0]


def check_l1_divides_by_the_sum_of_sizes_and_leaves_zeros(maths):
    assert pooled(maths, [[[1.0, -3.0], [0.0, 0.0]]], norm="l1") == [0.125, -0.375]


def check_constant_scores_keep_the_earliest_blocks(maths):
    norms, pools = ("none", "zscore", "rank", "l1"), ("mean", "max")
    for constant, norm, pool, detrend in product((0.0, 0.1, 7.3), norms, pools, (0, 5)):
        how = {"norm": norm, "pool": pool, "detrend": detrend}
        assert best(maths, [constant] * 40, 3, **how) == [0, 1, 2]


# Detrending


def check_detrend_takes_off_the_running_median_of_logarithms(maths):
    """Window 3; the edges see two blocks, whose median is halfway: log 2, 4, 8, 2, 2."""
    one = math.log(2)

    assert pooled(maths, [[[2.0, 4.0, 8.0, 2.0, 2.0]]], detrend=3) == pytest.approx(
        [-0.5 * one, 0, one, 0, 0], abs=1e-6
    )


def check_the_trend_is_that_of_mid_alone(maths):
    """Huge pins do not show in it; each pin is held against the mid block next to it."""
    split = Split((0,), (1, 2, 3), (4, 5), 1)
    one = math.log(2)

    assert pooled(maths, [[[512.0, 2.0, 2.0, 2.0, 1.0, 4.0]]], split, detrend=3) == pytest.approx(
        [8 * one, 0, 0, 0, -one, one], abs=1e-6
    )


def check_a_trend_slower_than_the_window_leaves_the_selection(maths):
    """Peaks of 1.5 over 1; scores that grow 20-fold towards the end hide them, detrend does not."""
    peaks = [7, 31, 64, 90, 118]
    flat = torch.ones(128).index_fill(0, torch.tensor(peaks), 1.5)
    rising = flat * torch.exp(torch.arange(128) * math.log(20) / 128)

    assert best(maths, flat, 5) == best(maths, flat, 5, detrend=9) == peaks
    assert best(maths, rising, 5) == [118, 124, 125, 126, 127]
    assert best(maths, rising, 5, detrend=9) == peaks
    assert best(maths, rising * 1e6, 5, detrend=9) == peaks


def check_a_window_wider_than_mid_is_one_median_for_all(maths):
    """Median 4 of 1, 4, 16."""
    four = math.log(4)

    assert pooled(maths, [[[1.0, 4.0, 16.0]]], detrend=33) == pytest.approx(
        [-four, 0, four], abs=1e-6
    )
    assert pooled(maths, [[[1.0]]], detrend=33) == [0.0]


def check_a_score_of_zero_has_a_logarithm_and_comes_last(maths):
    low = pooled(maths, [[[1.0, 0.0, 1.0, 1.0]]], detrend=3)

    assert low[1] == pytest.approx(math.log(torch.finfo(torch.float32).tiny))


def check_detrend_refuses_negative_scores(maths):
    said = "detrend takes the logarithm of scores, and the least of these is -2; write norm=rank"
    with pytest.raises(ConfigError, match=said):
        pooled(maths, [[[1.0, -2.0]]], detrend=3)
    assert pooled(maths, [[[1.0, -2.0]]], detrend=3, norm="rank")[0] > 0


def check_only_a_window_with_a_middle_is_taken(maths):
    for window in (2, 32, 1, -3):
        with pytest.raises(ConfigError, match=f"or 0 for off; got {window}"):
            maths.Ranking(detrend=window)
    for window in (0, 3, 33):
        assert maths.Ranking(detrend=window).detrend == window


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_ranking_gives_the_known_answer(check):
    check(ranking)


PLANTED = {
    "a sum over layers and heads": ("values.mean((0, 1)) if", "values.sum((0, 1)) if"),
    "the minimum for the maximum": ("amax((0, 1))", "amin((0, 1))"),
    "the z-score's mean left in": ("return (centred /", "return (values /"),
    "the z-score's sample deviation": (
        "centred.square().mean(-1, keepdim=True).sqrt()",
        "centred.std(-1, keepdim=True)",
    ),
    "a flat head is not a number": (".masked_fill(flat, 0.0)", ""),
    "ranks upside down": ("values.contiguous()", "-values.contiguous()"),
    "ranks of unsorted scores": (".sort(-1).values\n", ".sort(-1, descending=True).values\n"),
    "ties at their first place": ("right=True", "right=False"),
    "ranks to 2": ("(2 * values.shape[-1])", "values.shape[-1]"),
    "l1 without the signs taken off": ("values.abs().sum", "values.sum"),
    "0/0 for a head of zeros": (".masked_fill(total == 0, 0.0)", ""),
    "log(1 + s)": (".log()\n", ".log1p()\n"),
    "the trend added": ("logs - trend", "logs + trend"),
    "the trend of the pins too": (
        "_detrended(pooled, split.mid,",
        "_detrended(pooled, tuple(range(len(pooled))),",
    ),
    "all blocks by the first trend": ("clamp(max=len(mid) - 1)", "clamp(max=0)"),
    "negative scores let through": ("(pooled < 0).any()", "(pooled > 1e9).any()"),
    "a window twice as wide": ("window // 2,", "window,"),
    "the upper median": ("(count - 1) // 2", "count // 2"),
    "the lower median": ("gather(-1, count // 2)", "gather(-1, (count - 1) // 2)"),
    "twice the median": ("return middle[:, 0] / 2", "return middle[:, 0]"),
    "ties to the later block": ("(-pooled[block], block)", "(-pooled[block], -block)"),
    "the worst first": ("(-pooled[block], block)", "(pooled[block], block)"),
    "an even window": ("window % 2 == 0", "window % 2 == 7"),
    "a window of one block": ("window < 3", "window < 1"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], ranking))


# In a stack


@pytest.mark.parametrize("window", [2, 32, 1, -3])
def test_a_window_that_has_no_middle_is_refused(window):
    said = f"detrend is an odd number of blocks from 3, such as 33, or 0 for off; got {window}"
    with pytest.raises(ConfigError, match=said):
        Router.from_config(parse(f"A1R2K13(~top-k[detrend={window}])"))


def test_only_what_differs_from_the_defaults_is_in_the_canonical_stack():
    written = "A1R2K13(~TOP_K[detrend=33, norm=none, pool=mean])"

    assert str(Router.from_config(parse(written)).stack.config) == "A1R2K13(~top-k[detrend=33])"
    assert str(Router.from_config(parse("A1R2K13(~top-k[norm=none])")).stack.config) == "A1R2K13"


def test_an_unknown_norm_is_refused():
    with pytest.raises(ConfigError, match="top-k's norm is one of none, zscore, rank, l1"):
        Router.from_config(parse("A1R2K13(~top-k[norm=softmax])"))


def test_a_manifest_shows_the_scores_its_selector_ranked_by(plugin, make_cartridge):
    """Scores 0 … 4 in six heads, as ranks of five."""
    plugin(
        "scorer",
        "ramp",
        "@hookimpl\ndef kri_score_blocks(): return torch.arange(5.0).view(1, 1, 5)",
    )
    manifest = Router.from_config(parse("A1R0K1(ramp~top-k[norm=rank])")).route(make_cartridge(5))

    assert manifest.scores == pytest.approx((0.2, 0.4, 0.6, 0.8, 1.0))
    assert (manifest.kept, manifest.stack) == ((0, 4), "A1R0K1(ramp~top-k[norm=rank])")
