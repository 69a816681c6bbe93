"""Which tokens a plan names, known by hand, and planted bugs in the formula."""

import sys

import pytest
import torch
from kri_plugin_xa25 import share, xa, xa15, xa25

from kri_core import RepairParams
from kri_core.testing import is_noticed, plant_bug


def check_counts(refreshed):
    """CASES 37 and the exact ceiling of ALGORITHMS 9.5, on (tokens, ratio, count)."""
    for tokens, ratio, wanted in (
        (10, 0, 0),  # nothing
        (0, 0, 0),
        (10, 1, 10),  # everything
        (1, 0.25, 1),  # a quarter of one token is one
        (0, 0.25, 0),  # there is none
        (4, 0.25, 1),
        (5, 0.25, 2),
        (256, 0.25, 64),
        (258, 0.25, 65),
        (100, 0.07, 7),  # 0.07 · 100 is 7.000000000000001 in floating point
        (100, 0.55, 55),
        (3, 0.001, 1),  # never none for a ratio above 0
    ):
        assert len(refreshed(torch.arange(tokens).float(), ratio, RepairParams())) == wanted


def check_choice(refreshed):
    """The largest, ascending; of equal ones the earlier."""
    deviation = torch.tensor([1.0, 5.0, 0.0, 5.0, 7.0, 5.0, 1.0, 0.0])
    assert refreshed(deviation, 0.25, RepairParams()) == (1, 4)
    assert refreshed(deviation, 0.5, RepairParams()) == (1, 3, 4, 5)
    assert refreshed(deviation, 0.625, RepairParams()) == (0, 1, 3, 4, 5)
    assert refreshed(torch.zeros(40), 0.25, RepairParams()) == tuple(range(10))


def check_gradual(refreshed):
    """It starts at 1.3 · ρ, which may be more than there are."""
    gradual = RepairParams(mode="gradual")
    for tokens, ratio, wanted in ((100, 0.1, 13), (40, 0.25, 13), (10, 0.9, 10), (10, 0, 0)):
        assert len(refreshed(torch.arange(tokens).float(), ratio, gradual)) == wanted


CHECKS = (check_counts, check_choice, check_gradual)


@pytest.mark.parametrize("check", CHECKS)
def test_the_plan_is_the_one_known_by_hand(check):
    check(share.refreshed)


BUGS = {
    "floor for ceil": ("math.ceil(", "math.floor("),
    "the ceiling of a float": ("params.first_share(ratio) *", "float(ratio) *"),
    "one token for ratio 0": ("* len(deviation))", "* len(deviation)) or 1"),
    "a share of the deviation, not of the tokens": ("len(deviation)", "float(deviation.sum())"),
    "the smallest deviations": ("most_deviating(deviation", "most_deviating(-deviation"),
    "not the deviation but its order of tokens": (
        "(deviation, count)",
        "(deviation.flip(0), count)",
    ),
    "a gradual repair starts at the ratio": ("params.first", "type(params)().first"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug):
    assert is_noticed(CHECKS, plant_bug(*BUGS[bug], share).refreshed)


def test_each_name_has_its_share():
    deviation = torch.arange(100).float()

    assert xa25.kri_plan_repair(deviation, xa25.Params()) == tuple(range(75, 100))
    assert xa15.kri_plan_repair(deviation, xa15.Params()) == tuple(range(85, 100))
    assert xa.kri_plan_repair(deviation, xa.Params()) == tuple(range(75, 100))
    assert xa.kri_plan_repair(deviation, xa.Params(ratio=0.02)) == (98, 99)


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_share_is_between_nothing_and_everything(ratio):
    with pytest.raises(ValueError, match="'ratio' must be"):
        xa.Params(ratio=ratio)


def test_the_hooks_import_without_torch():
    """Listing and parsing must stay light."""
    import subprocess

    code = "import sys, kri_plugin_xa25.xa, kri_plugin_xa25.xa25; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
