"""kri-q-centre: what turning keys to the block's centre changes, and what it must not."""

import inspect
import math

import pytest
import torch
from attrs import evolve
from kri_plugin_q import centre
from kri_plugin_q.affinity import score_means
from kri_plugin_q.summaries import block_means

from kri_core import Layout, centre_means
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

MODEL = FakeModel.random()
ROPE = FakeProbe(MODEL, MODEL.cartridge(range(8))).rope


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stored(plain, shift=0, block_size=4, rope=ROPE):
    """A cartridge of these keys [kv_head, token, head_dim], turned to positions from `shift`."""
    heads, tokens, dim = plain.shape
    keys = rope.turn(plain, torch.arange(tokens) + shift)[None]
    kv = torch.stack([keys, torch.zeros_like(keys)], 1)
    return cartridge_of(Layout(1, heads, dim, block_size, tokens), kv, range(tokens))


def check_a_shift_of_all_positions_changes_nothing(means):
    """ALGORITHMS 4.5, 5; the control shifts the keys alone."""
    plain, question = draw(2, 20, 8), draw(1, 4, 1, 8, seed=1)

    def scores(shift, asked_at):
        queries = ROPE.turn(question, torch.tensor([20 + asked_at]))
        kept = means(stored(plain, shift), ROPE)
        return score_means(queries, kept, "dot", "last", "mean")

    still = scores(0, 0)
    torch.testing.assert_close(scores(37, 37), still, rtol=0, atol=1e-6)
    assert (scores(37, 0) - still).abs().max() > 1e-2


def band(omega, size, means):
    """How long the mean of `size` equal keys of one band of ω is, of 1."""
    rope = evolve(ROPE, inv_freq=torch.tensor([omega], dtype=torch.float64))
    plain = torch.tensor([0.6, 0.8], dtype=torch.float64).expand(1, 3 * size, 2)
    return means(stored(plain, 0, size, rope), rope)[0, 0], rope


def check_a_fast_band_survives(means):
    """And points where the block's centre does, 7.5 of 0 … 15."""
    kept, rope = band(1.0, 16, means)
    centres = torch.tensor([7.5, 23.5, 39.5])
    plain = torch.tensor([0.6, 0.8], dtype=torch.float64).expand(3, 2)

    torch.testing.assert_close(kept, rope.turn(plain, centres).float(), rtol=0, atol=1e-6)


def check_a_needle_of_a_fast_band_is_found(means):
    """All 16 keys of block 2 are one key before RoPE; turned, they cancel in a plain mean."""
    rope = evolve(ROPE, inv_freq=torch.full((4,), 2 * math.pi / 16, dtype=torch.float64))
    plain = 0.05 * draw(1, 64, 8)
    plain[0, 32:48] = draw(8, seed=2)
    queries = rope.turn(plain[:, None, 32:33], torch.tensor([39.5]))

    kept = means(stored(plain, 0, 16, rope), rope)
    assert score_means(queries, kept, "dot", "last", "mean")[0, 0].argmax() == 2


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@every_check
def test_the_centred_mean_gives_the_known_answer(check):
    check(centre_means)


def test_the_hook_keeps_the_centred_mean():
    document = MODEL.cartridge(range(20, 46))
    probe = FakeProbe(MODEL, document)
    kept = centre.kri_summarise_blocks(document, probe)["mean"]

    assert kept.equal(centre_means(document, probe.rope))
    assert (kept - block_means(document)).abs().max() > 0.05


def test_a_plain_mean_is_as_still_but_shrinks_a_fast_band():
    """|sin(Bω/2) / (B sin(ω/2))|: .13 at ω = 1 and B = 16 (ALGORITHMS 4.1)."""

    def plain_means(document, _rope):
        return block_means(document)

    check_a_shift_of_all_positions_changes_nothing(plain_means)
    for omega, size in ((1.0, 16), (0.3, 4)):
        length = band(omega, size, plain_means)[0].norm(dim=-1)
        wanted = abs(math.sin(size * omega / 2) / (size * math.sin(omega / 2)))
        assert length.tolist() == pytest.approx([wanted] * 3, abs=1e-6)
    assert wanted > 0.9
    with pytest.raises(AssertionError):
        check_a_fast_band_survives(plain_means)
    with pytest.raises(AssertionError):
        check_a_needle_of_a_fast_band_is_found(plain_means)


PLANTED = {
    "turned on, not back": ("rope.turn(keys, -tokens)", "rope.turn(keys, tokens)"),
    "not turned back": ("rope.turn(keys, -tokens)", "keys"),
    "left at position 0": ("rope.turn(mean, centres)", "mean"),
    "the block's first token": ("* size + (size - 1) / 2", "* size"),
    "the block's end": ("(size - 1) / 2", "size / 2"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    mutant = plant_bug(*PLANTED[fault], inspect.getmodule(centre_means))

    assert is_noticed(CHECKS.values(), mutant.centre_means)
