"""Random and uniform choice: what decides the draw, and that every block is as likely."""

import subprocess
import sys
from collections import Counter
from zlib import crc32

import numpy as np
import pytest
from kri_plugin_hybrid import random_middle, uniform
from kri_plugin_hybrid.draws import generator, random_scores

from kri_core import Split

MIDDLE = Split((0,), tuple(range(1, 11)), (11, 12), 4)


def draw(split=MIDDLE, prefix_hash="a document", **params):
    return random_middle.kri_select_blocks(split, prefix_hash, random_middle.Params(**params))


def test_the_stream_is_pcg64_of_seed_xor_crc32():
    same = np.random.Generator(np.random.PCG64(3 ^ crc32(b"a document")))

    assert generator(3, "a document").integers(1 << 60) == same.integers(1 << 60)


def test_random_scores_are_one_permutation_per_cartridge_and_seed():
    scores = random_scores(40, 0, "a document")

    assert scores.shape == (1, 1, 40)
    assert sorted(scores.flatten().tolist()) == list(range(40))
    assert scores.equal(random_scores(40, 0, "a document"))
    assert not scores.equal(random_scores(40, 1, "a document"))
    assert not scores.equal(random_scores(40, 0, "another document"))


def test_random_middle_keeps_the_pins_and_draws_the_rest_from_mid():
    chosen = draw()

    assert len(set(chosen)) == len(chosen) == 7
    assert set(chosen) >= {0, 11, 12}
    assert chosen == draw()
    assert set(chosen) != set(draw(seed=1))
    assert set(chosen) != set(draw(prefix_hash="another document"))


def test_excluded_blocks_are_drawn_only_when_the_others_do_not_suffice():
    split = Split((), tuple(range(8)), (), 4)

    for seed in range(20):
        assert set(draw(split, anchor=1, recent=3, seed=seed)) == {1, 2, 3, 4}
        assert set(draw(split, anchor=2, recent=3, seed=seed)) > {2, 3, 4}
        assert len(set(draw(split, anchor=9, recent=9, seed=seed))) == 4


@pytest.mark.parametrize("from_scores", [False, True])
def test_every_mid_block_is_as_likely(from_scores):
    """χ² over 10 blocks, 4 of which are kept: 27.9 is the 0.1 % point of 9 degrees of freedom.

    Counts of a draw without replacement vary less than independent ones, by 1 − 4/10, and all
    sum to a constant, so the statistic is scaled by (10 − 1)/10 / (1 − 4/10).
    """
    counts, seeds = Counter(), 3000
    for seed in range(seeds):
        if from_scores:
            order = random_scores(10, seed, "a document").flatten().argsort(descending=True)
            counts.update(order[:4].tolist())
        else:
            counts.update(set(draw(seed=seed)) - {0, 11, 12})

    expected = seeds * 4 / 10
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 10
    assert chi_squared * (9 / 10) / (6 / 10) < 27.9


def test_uniform_spreads_over_the_middle():
    assert uniform.kri_select_blocks(MIDDLE) == (0, 11, 12, 1, 3, 6, 8)
    assert uniform.kri_select_blocks(Split((), tuple(range(6)), (), 3)) == (0, 2, 4)
    assert uniform.kri_select_blocks(Split((), (2, 3), (), 2)) == (2, 3)


def test_another_process_draws_the_same_blocks():
    code = (
        "from kri_plugin_hybrid.draws import random_scores;"
        "print(random_scores(12, 5, 'a document').flatten().tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == str(random_scores(12, 5, "a document").flatten().tolist())


def test_draws_leave_numpys_global_state_alone():
    np.random.seed(0)
    wanted = np.random.random()
    np.random.seed(0)
    random_scores(12, 5, "a document")
    draw()

    assert np.random.random() == wanted
