"""How scores become an order: norms, pooling and detrending, worked out by hand."""

import math

import pytest
import torch

from kri_core import BlockScores, ConfigError, Ranking, Split
from kri_core.grammar import parse
from kri_core.routing import Router


def pooled(values, split=None, **params):
    scores = BlockScores(torch.tensor(values, dtype=torch.float32))
    split = split or Split((), tuple(range(scores.num_blocks)), (), 1)
    return Ranking(**params).pooled(scores, split).tolist()


def best(values, count, **params):
    scores = BlockScores(torch.as_tensor(values, dtype=torch.float32).reshape(1, 1, -1))
    split = Split((), tuple(range(scores.num_blocks)), (), count)
    return sorted(Ranking(**params).order(scores, split)[:count])


# Norms and pooling


def test_the_default_is_upstreams_mean():
    values = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(torch.tensor(pooled(values.tolist())), values.float().mean((0, 1)))
    assert Ranking() == Ranking(norm="none", pool="mean", detrend=0)


def test_the_layer_of_the_largest_scale_decides_unless_layers_are_scaled():
    """Layers (0, 0, 3) and (200, 100, 0): plain means follow the second."""
    layers = [[[0.0, 0.0, 3.0]], [[200.0, 100.0, 0.0]]]

    assert pooled(layers) == [100.0, 50.0, 1.5]
    assert pooled(layers, norm="l1") == pytest.approx([1 / 3, 1 / 6, 1 / 2])
    assert pooled(layers, pool="max") == [200.0, 100.0, 3.0]


def test_zscore_is_by_layer_and_head_with_the_population_deviation():
    """(1, 3) has mean 2 and deviation 1; (10, 10) has none and says nothing."""
    assert pooled([[[1.0, 3.0], [10.0, 10.0]]], norm="zscore") == [-0.5, 0.5]
    assert pooled([[[1.0, 3.0], [10.0, 10.0]]], norm="zscore", pool="max") == [0.0, 1.0]


def test_rank_is_the_mean_place_among_ties_over_the_number_of_blocks():
    """Places 1, (2 + 3)/2 twice, 4, each over 4."""
    assert pooled([[[-7.0, 0.5, 0.5, 1e6]]], norm="rank") == [0.25, 0.625, 0.625, 1.0]


def test_l1_divides_by_the_sum_of_sizes_and_leaves_zeros():
    assert pooled([[[1.0, -3.0], [0.0, 0.0]]], norm="l1") == [0.125, -0.375]


@pytest.mark.parametrize("norm", ["none", "zscore", "rank", "l1"])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_constant_scores_keep_the_earliest_blocks(norm, pool):
    for constant in (0.0, 0.1, 7.3):
        for detrend in (0, 5):
            how = {"norm": norm, "pool": pool, "detrend": detrend}
            assert best([constant] * 40, 3, **how) == [0, 1, 2]


# Detrending


def test_detrend_takes_off_the_running_median_of_logarithms():
    """Window 3; the edges see two blocks, whose median is halfway: log 2, 4, 8, 2, 2."""
    one = math.log(2)

    assert pooled([[[2.0, 4.0, 8.0, 2.0, 2.0]]], detrend=3) == pytest.approx(
        [-0.5 * one, 0, one, 0, 0], abs=1e-6
    )


def test_the_trend_is_that_of_mid_alone():
    """Huge pins do not show in it; each pin is held against the mid block next to it."""
    split = Split((0,), (1, 2, 3), (4, 5), 1)
    one = math.log(2)

    assert pooled([[[512.0, 2.0, 2.0, 2.0, 1.0, 4.0]]], split, detrend=3) == pytest.approx(
        [8 * one, 0, 0, 0, -one, one], abs=1e-6
    )


def test_a_trend_slower_than_the_window_leaves_the_selection():
    """Peaks of 1.5 over 1; scores that grow 20-fold towards the end hide them, detrend does not."""
    peaks = [7, 31, 64, 90, 118]
    flat = torch.ones(128).index_fill(0, torch.tensor(peaks), 1.5)
    rising = flat * torch.exp(torch.arange(128) * math.log(20) / 128)

    assert best(flat, 5) == best(flat, 5, detrend=9) == peaks
    assert best(rising, 5) == [118, 124, 125, 126, 127]
    assert best(rising, 5, detrend=9) == peaks
    assert best(rising * 1e6, 5, detrend=9) == peaks


def test_a_window_wider_than_mid_is_one_median_for_all():
    """Median 4 of 1, 4, 16."""
    four = math.log(4)

    assert pooled([[[1.0, 4.0, 16.0]]], detrend=33) == pytest.approx([-four, 0, four], abs=1e-6)
    assert pooled([[[1.0]]], detrend=33) == [0.0]


def test_a_score_of_zero_has_a_logarithm_and_comes_last():
    low = pooled([[[1.0, 0.0, 1.0, 1.0]]], detrend=3)

    assert low[1] == pytest.approx(math.log(torch.finfo(torch.float32).tiny))


def test_detrend_refuses_negative_scores():
    said = "detrend takes the logarithm of scores, and the least of these is -2; write norm=rank"
    with pytest.raises(ConfigError, match=said):
        pooled([[[1.0, -2.0]]], detrend=3)
    assert pooled([[[1.0, -2.0]]], detrend=3, norm="rank")[0] > 0


@pytest.mark.parametrize("window", [2, 32, 1, -3])
def test_a_window_that_has_no_middle_is_refused(window):
    said = f"detrend is an odd number of blocks from 3, such as 33, or 0 for off; got {window}"
    with pytest.raises(ConfigError, match=said):
        Router.from_config(parse(f"A1R2K13(~top-k[detrend={window}])"))


# In a stack


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
