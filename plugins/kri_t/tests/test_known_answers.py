"""The maths against sums over offsets and un-rotated keys, and that a wrong formula is noticed.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import math

import pytest
import torch
from attrs import evolve
from kri_plugin_t import expected_query, trigonometry

from kri_core import Calibration, ConfigError, Layout
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

OFFSETS = [2**power for power in range(17)]
FREQUENCIES = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def complex_draw(*shape, seed=0):
    return torch.complex(draw(*shape, seed=seed), draw(*shape, seed=seed + 100))


def stored(keys, positions):
    """Keys before RoPE, complex [..., token, pair], turned to their positions."""
    return keys * torch.exp(1j * positions[:, None] * FREQUENCIES)


def close(got, wanted, tolerance=1e-10):
    torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


class AProbe(FakeProbe):
    """With a rope and a calibration of the test's own."""

    rope = calibration = None

    def __init__(self, cartridge, rope, calibration):
        super().__init__(FakeModel.random(), cartridge)
        self.rope, self.calibration = rope, calibration


def rope(**changes):
    plain = FakeProbe(FakeModel.random(), FakeModel.random().cartridge((1,) * 4)).rope
    return evolve(plain, inv_freq=FREQUENCIES, **changes)


def case(head_dim=8, **rope_changes):
    """One layer, two KV heads of two query heads, six blocks of 4 and a tail of 2."""
    kv = draw(1, 2, 2, 26, head_dim)
    cartridge = cartridge_of(Layout(1, 2, head_dim, 4, 26), kv, tuple(range(26)))
    centre = complex_draw(1, 4, head_dim // 2, seed=1)
    length = centre.abs() + draw(1, 4, head_dim // 2, seed=2).abs()
    calibration = Calibration(centre.to(torch.complex64), length.float(), "fake", 64)
    return cartridge, AProbe(cartridge, rope(**rope_changes), calibration)


def by_definition(cartridge, probe, pool="topm", max_offset=65_536):
    """Real RoPE'd dot products at every offset, plain keys' lengths, one query head at a time.

    Queries and keys are real vectors here: pairs are undone by hand for the rope's style.
    """
    style, calibration = probe.rope, probe.calibration
    layout, bands = cartridge.layout, len(style.inv_freq)
    answers = []
    for head in range(layout.num_kv_heads):
        keys = cartridge.keys()[0, head]  # [token, head_dim]
        scaled = keys[:, : 2 * bands] / style.scaling
        plain = style.turn(torch.cat([scaled, keys[:, 2 * bands :]], -1), -torch.arange(24))
        best = None
        for query in (2 * head, 2 * head + 1):
            centre = calibration.centre[0, query].to(torch.complex128)
            real = torch.view_as_real(centre[:bands])
            vector = real.flatten() if style.interleaved else real.T.flatten()
            vector = torch.cat([vector, torch.view_as_real(centre[bands:]).T.flatten()])
            logits = torch.zeros(24, dtype=torch.float64)
            offsets = [offset for offset in OFFSETS if offset <= max_offset]
            for offset in offsets:
                at = torch.tensor([26 + offset])
                asked = style.turn(vector[None], at)[0]
                there = style.turn(plain, torch.arange(24))
                product = asked * there
                logits += style.scaling**2 * product[:, : 2 * bands].sum(-1) / len(offsets)
                logits += product[:, 2 * bands :].sum(-1) / len(offsets)
            lengths = style.pairs(plain).abs()
            weights = torch.full((lengths.shape[1],), 1.0, dtype=torch.float64)
            weights[:bands] = style.scaling**2
            logits += lengths @ (weights * (calibration.length[0, query].double() - centre.abs()))
            mean = logits.sum() / 24
            z = (logits - mean) / ((logits - mean).square().sum() / 24).sqrt()
            best = z if best is None else torch.maximum(best, z)
        blocks = best.reshape(6, 4)
        answers.append(
            {
                "topm": blocks.sort(-1, descending=True).values[:, :2].sum(-1) / 2,
                "max": blocks.max(-1).values,
                "lse": blocks.exp().sum(-1).log(),
                "mean": blocks.sum(-1) / 4,
            }[pool]
        )
    return torch.stack(answers)[None].float()


def params(**changes):
    return expected_query.Params(m=2, **changes)


def check_scores_are_those_of_the_definition(maths):
    """Cached keys and folded offsets against un-rotated keys and 17 dot products, in every pool."""
    cartridge, probe = case()
    for pool in ("topm", "max", "lse", "mean"):
        got = maths.score_blocks(cartridge, probe, params(pool=pool))
        close(got, by_definition(cartridge, probe, pool), 1e-5)
    got = maths.score_blocks(cartridge, probe, params(max_offset=4096))
    close(got, by_definition(cartridge, probe, max_offset=4096), 1e-5)


def check_every_rope_is_followed(maths):
    """Interleaved pairs, YaRN's scaling, and four of twelve dimensions that are not rotated."""
    for head_dim in (8, 12):
        for changes in ({}, {"interleaved": True}, {"scaling": 1.5}):
            cartridge, probe = case(head_dim, **changes)
            got = maths.score_blocks(cartridge, probe, params())
            close(got, by_definition(cartridge, probe), 1e-5)


def check_folded_offsets_are_the_mean_over_offsets(maths):
    """ALGORITHMS 5.9, test 2; keys stored, and un-rotated."""
    plain, positions = complex_draw(2, 30, 4), torch.arange(30).double()
    keys, centre = stored(plain, positions), complex_draw(2, 3, 4, seed=1)
    got = maths.token_scores(keys, centre, centre.abs(), maths.turns(FREQUENCIES, 30, 65_536))
    wanted = torch.zeros(2, 3, 30, dtype=torch.float64)
    for offset in OFFSETS:
        distance = 30 - positions + offset  # [token]
        angle = distance[:, None] * FREQUENCIES  # [token, pair]
        angle = angle + centre.angle()[:, :, None] - plain.angle()[:, None]
        lengths = centre.abs()[:, :, None] * plain.abs()[:, None]
        wanted += (lengths * angle.cos()).sum(-1) / 17
    close(got, wanted)


def check_the_series_is_the_rotated_dot_product(maths):
    """ALGORITHMS 5.9, test 1, on real vectors, in both styles of RoPE."""
    keys, queries = draw(2, 30, 8), draw(2, 3, 8, seed=1)
    for style in (rope(), rope(interleaved=True)):
        cached, asked = (
            style.turn(keys, torch.arange(30)),
            style.turn(queries, torch.full((3,), 64)),
        )
        centre = style.pairs(queries)
        ahead = maths.turns(FREQUENCIES, 63, 1)
        got = maths.token_scores(style.pairs(cached), centre, centre.abs(), ahead)
        close(got, asked @ cached.mT)


def check_the_mean_of_a_block_is_a_dot_product_with_one_query(maths):
    """ALGORITHMS 5.6: why the mean is not the default pool."""
    keys, centre = complex_draw(1, 8, 4), complex_draw(1, 1, 4, seed=1)
    ahead = maths.turns(FREQUENCIES, 8, 65_536)
    tokens = maths.token_scores(keys, centre, centre.abs(), ahead)[:, 0]
    query, mean_keys = (centre * ahead)[0, 0], keys[0].reshape(2, 4, 4).mean(1)
    close(maths.pool(tokens, 4, "mean", 4)[0], (query * mean_keys.conj()).real.sum(-1))


def check_a_constant_query_scores_its_own_logits(maths):
    """ALGORITHMS 5.9, test 3: R = 1, so nothing is left for the keys' lengths."""
    keys, query = complex_draw(1, 8, 4), complex_draw(1, 1, 4, seed=1)
    got = maths.token_scores(keys, query, query.abs(), maths.turns(FREQUENCIES, 8, 1))
    turned = query[0, 0] * torch.exp(1j * 9.0 * FREQUENCIES)
    close(got[0, 0], (turned * keys[0].conj()).real.sum(-1))


def check_isotropic_queries_rank_by_length(maths):
    """The other end of test 3: R = 0."""
    keys, length = complex_draw(1, 8, 4), draw(1, 1, 4, seed=1).abs()
    got = maths.token_scores(keys, 0j * length, length, maths.turns(FREQUENCIES, 8, 65_536))
    close(got[0, 0], (length[0, 0] * keys[0].abs()).sum(-1))


def check_moving_keys_and_queries_together_changes_nothing(maths):
    plain, centre = complex_draw(1, 8, 4), complex_draw(1, 2, 4, seed=1)
    positions = torch.arange(8).double()
    here, moved = (
        maths.token_scores(
            stored(plain, positions + by),
            centre,
            2 * centre.abs(),
            maths.turns(FREQUENCIES, 8 + by, 65_536),
        )
        for by in (0, 1000)
    )
    close(moved, here, 1e-9)


def check_the_most_interested_head_decides(maths):
    """ALGORITHMS 5.9, test 5: a loud head counts no more, and a key one head wants is first."""
    scores = draw(2, 3, 12)
    louder = scores.clone()
    louder[:, 1] *= 100
    every = torch.arange(12)
    close(maths.most_interested(louder, every), maths.most_interested(scores, every))
    alone = torch.zeros(1, 2, 4, dtype=torch.float64)
    alone[0, 0], alone[0, 1, 2] = torch.tensor([1.0, -1, 0, 0]), 3.0
    z = (torch.tensor([0.0, 0, 3, 0]) - 0.75) / math.sqrt(9 * 3 / 16)  # of the second head
    got = maths.most_interested(alone, torch.arange(4))[0]
    assert got.argmax() == 2
    assert float(got[2]) == pytest.approx(float(z[2]))
    silent = maths.most_interested(torch.full((1, 1, 4), 5.0).double(), torch.arange(4))
    assert silent.tolist() == [[0.0] * 4]


def check_only_counted_tokens_set_the_scale(maths):
    """(1, 3) have mean 2 and deviation 1, so that 9 is 7 of them away."""
    scores = torch.tensor([[[9.0, 1, 3]]])
    assert maths.most_interested(scores, torch.tensor([1, 2])).tolist() == [[7, -1, 1]]


def check_the_preferred_distance_wins(maths):
    """ALGORITHMS 5.9, test 6: one slow band whose logit peaks 24 tokens back, offset 1."""
    slow = torch.tensor([2 * math.pi / 200], dtype=torch.float64)
    keys = torch.exp(1j * torch.arange(64).double()[:, None] * slow)[None]  # all alike before RoPE
    centre = torch.exp(-1j * 24 * slow).reshape(1, 1, 1)
    tokens = maths.token_scores(keys, centre, centre.abs(), maths.turns(slow, 63, 1))

    assert tokens[0, 0].argmax() == 40  # 64 − 24
    wanted = maths.most_interested(tokens, torch.arange(64))
    assert maths.pool(wanted, 4, "max", 4)[0].argmax() == 10


def check_pools(maths):
    tokens = torch.tensor([[4.0, 1, 3, 2, 0, 0, 0, 8]])

    assert maths.pool(tokens, 4, "topm", 2).tolist() == [[3.5, 4.0]]
    assert maths.pool(tokens, 4, "topm", 9).tolist() == [[2.5, 2.0]]
    assert maths.pool(tokens, 4, "max", 2).tolist() == [[4.0, 8.0]]
    assert maths.pool(tokens, 4, "mean", 2).tolist() == [[2.5, 2.0]]
    sums = [sum(map(math.exp, block)) for block in ((4, 1, 3, 2), (0, 0, 0, 8))]
    close(maths.pool(tokens, 4, "lse", 2), torch.tensor([sums]).log(), 1e-5)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(trigonometry)


PLANTED = {
    "the distance's sign": ("keys.conj().mT", "keys.mT"),
    "the query's conjugate": ("(centre * ahead)", "(centre.conj() * ahead)"),
    "no trigonometric term": ("return concentrated + spread", "return spread"),
    "no length term": ("return concentrated + spread", "return concentrated"),
    "the length without its centre": ("(length - centre.abs())", "length"),
    "offsets added up": (".mean(0)", ".sum(0)"),
    "linear offsets": ("2.0 ** torch.arange(max_offset.bit_length()", "1.0 + torch.arange(17"),
    "the last offset left out": (".bit_length()", ".bit_length() - 1 or 1"),
    "an offset of 0": ("(position + offsets)", "(position + offsets - 1)"),
    "queries inside the document": ("(position + offsets)", "offsets"),
    "the position after the last block": (
        "layout.num_tokens,\n",
        "layout.num_tokens // 4 * 4,\n",
    ),
    "no z-score": ("return ((scores - mean) / deviation)", "return scores"),
    "the scale of all tokens": ("scores[..., counted]", "scores"),
    "not centred": ("(scores - mean)", "scores"),
    "the sample's deviation": ("correction=0", "correction=1"),
    "no least deviation": (".clamp(min=LEAST_DEVIATION)", ""),
    "mean for max over the group": (".amax(1)", ".mean(1)"),
    "the first head of the group": (".amax(1)", "[:, 0]"),
    "max for topm": ("blocks.topk(min(m, block_size)).values.mean(-1)", "blocks.amax(-1)"),
    "a sum for topm": (".values.mean(-1)", ".values.sum(-1)"),
    "lse of halves": ("blocks.logsumexp(-1)", "(blocks / 2).logsumexp(-1)"),
    "unrotated pairs turned": ("inv_freq, (0, still))", "inv_freq, (0, still), value=1.0)"),
    "unrotated pairs left out": ("(0, still), value=1.0", "(0, still), value=0.0"),
    "no scaling": ("rope.inv_freq, rope.scaling)", "rope.inv_freq, 1.0)"),
    "the scaling squared": ("rope.inv_freq, rope.scaling)", "rope.inv_freq, rope.scaling**2)"),
    "values for keys": ("cartridge.kv[:, layer, 0]", "cartridge.kv[:, layer, 1]"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], trigonometry))


def test_without_a_calibration_it_says_how_to_make_one():
    cartridge, probe = case()
    probe.calibration = None

    with pytest.raises(ConfigError, match="run kri-core calibrate --model fake --text FILE, once"):
        expected_query.kri_score_blocks(cartridge, probe, params())


def test_float32_ranks_as_float64():
    cartridge, probe = case()
    single = evolve(cartridge, kv=cartridge.kv.float(), tail=cartridge.tail.float())
    exact, close_to = (
        expected_query.kri_score_blocks(each, probe, params()) for each in (cartridge, single)
    )

    assert exact.shape == (1, 2, 6)
    assert exact.mean((0, 1)).argsort().tolist() == close_to.mean((0, 1)).argsort().tolist()
