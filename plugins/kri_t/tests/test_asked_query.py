"""kri-t-q against sums written out in real numbers, and that a wrong formula is noticed.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import pytest
import torch
from attrs import evolve
from kri_plugin_t import asked_query, blending, late_query, trigonometry

from kri_core import ArtifactError, Calibration, ConfigError, Layout, Query, Readout, Split
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

QUESTION = Query((3, 8, 1))
PINS = Split.pin(6, anchor=1, recent=1, mid_budget=2)
OFFSETS = [2**power for power in range(17)]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got, wanted, tolerance=1e-5):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=tolerance)


class Asked:
    """A probe whose question has these queries before RoPE, [layer, q_head, token, head_dim]."""

    texts = ()

    def __init__(self, queries, calibration=None):
        plain = FakeModel.random().cartridge((1,) * 4)
        self.rope = FakeProbe(FakeModel.random(), plain).rope  # 4 bands
        self.queries, self.calibration, self.shown = queries, calibration, None

    def forward(self, token_ids, *, read, visible):
        assert list(read) == ["pre_rope_queries"]
        self.shown = visible[0].nonzero().flatten().tolist()
        return Readout(pre_rope_queries=self.queries[None])


def case(tokens=3, layers=2, block_size=4):
    """Two KV heads of two query heads; 26 tokens, which are six blocks of 4 and a tail of 2."""
    kv = draw(layers, 2, 2, 26, 8)
    cartridge = cartridge_of(Layout(layers, 2, 8, block_size, 26), kv, tuple(range(26)))
    centre = torch.complex(draw(layers, 4, 4, seed=1), draw(layers, 4, 4, seed=2))
    length = centre.abs() + draw(layers, 4, 4, seed=3).abs()
    calibration = Calibration(centre.to(torch.complex64), length.float(), "fake", 64)
    return cartridge, Asked(2 * draw(layers, 4, tokens, 8, seed=4), calibration)


def scored(maths, cartridge, probe, split=None, first_layer=0, **params):
    summary = maths.summarise(cartridge, probe, first_layer)
    split = split or Split.pin(cartridge.layout.num_blocks, anchor=0, recent=0)
    params = asked_query.Params(m=2, **params)
    return maths.score(summary, QUESTION, split, probe, params)


def lengths(vectors):
    """Of each pair (f, f + 4) of eight dimensions."""
    return (vectors[..., :4].square() + vectors[..., 4:].square()).sqrt()


def by_hand(cartridge, probe, own, counted):
    """Real dot products at every offset, one query head at a time, topm of 2."""
    answers = torch.zeros(cartridge.layout.num_layers, 2, 6, dtype=torch.float64)
    for layer, head in ((layer, head) for layer in range(len(answers)) for head in (0, 1)):
        keys, best = cartridge.keys()[layer, head], torch.full((24,), -torch.inf).double()
        for asker in (2 * head, 2 * head + 1):
            usual, asked = probe.calibration.centre[layer, asker], probe.queries[layer, asker]
            usual = torch.cat([usual.real, usual.imag]).double()
            query = (1 - own) * usual + own * sum(asked) / len(asked)
            logits = torch.zeros(24, dtype=torch.float64)
            for offset in OFFSETS:
                there = probe.rope.turn(query[None], torch.tensor([26 + offset]))[0]
                logits += keys @ there / 17
            length = (1 - own) * probe.calibration.length[layer, asker].double()
            length += own * sum(lengths(asked)) / len(asked)
            logits += lengths(keys) @ (length - lengths(query))
            mean = sum(logits[counted]) / len(counted)
            deviation = (sum((logits[counted] - mean) ** 2) / len(counted)) ** 0.5
            best = torch.maximum(best, (logits - mean) / deviation)
        answers[layer, head] = best.view(6, 4).sort(-1).values[:, 2:].mean(-1)
    return answers


def check_scores_are_those_of_the_definition(maths):
    """Of three question tokens, with and without pins, and by every share of the question."""
    cartridge, probe = case()
    for own in (0.0, 0.3, 0.5, 1.0):
        got = scored(maths, cartridge, probe, blend=own)
        close(got, by_hand(cartridge, probe, own, list(range(24))))
        got = scored(maths, cartridge, probe, PINS, blend=own)
        close(got, by_hand(cartridge, probe, own, list(range(4, 20))))
    close(scored(maths, cartridge, probe), by_hand(cartridge, probe, 0.5, list(range(24))))


def check_without_a_share_it_is_kri_t(maths):
    """Bit for bit, whatever is asked; with a share it is not."""
    cartridge, probe = case()
    for pool in ("topm", "max", "lse", "mean"):
        wanted = trigonometry.score_blocks(cartridge, probe, asked_query.Params(m=2, pool=pool))
        assert scored(maths, cartridge, probe, blend=0.0, pool=pool).equal(wanted)
    assert not torch.allclose(scored(maths, cartridge, probe, blend=0.1, pool="mean"), wanted)


def check_one_token_alone_scores_its_own_logits(maths):
    """ALGORITHMS 5.9, 3: blend=1 leaves nothing for the keys' lengths; here blocks are tokens."""
    cartridge, probe = case(tokens=1, layers=1, block_size=1)
    logits = torch.zeros(4, 26, dtype=torch.float64)  # [q_head, token]
    for offset in OFFSETS:
        there = probe.rope.turn(probe.queries[0], torch.tensor([26 + offset]))  # [q_head, 1, d]
        logits += (there @ cartridge.keys()[0].repeat_interleave(2, 0).mT)[:, 0] / 17
    z = (logits - logits.mean(1, keepdim=True)) / logits.std(1, correction=0, keepdim=True)

    close(scored(maths, cartridge, probe, blend=1.0)[0], z.view(2, 2, 26).amax(1))


def check_moving_document_and_question_together_changes_nothing(maths):
    """The control moves the keys alone."""
    cartridge, probe = case()
    still = maths.summarise(cartridge, probe, 0)
    keys = still["keys"].flatten(2, 3)
    turned = probe.rope.turn(keys, torch.full((24,), 1000)).view_as(still["keys"])
    params = asked_query.Params()

    def score(**changes):
        return maths.score(still | changes, QUESTION, PINS, probe, params)

    close(score(keys=turned, num_tokens=torch.tensor(1026)), score())
    assert (score(keys=turned) - score()).abs().max() > 0.1


def looked_for(probe, head):
    """Where this query head's one token looks, mean over the offsets, [head_dim]."""
    query = probe.queries[0, head]
    return sum(probe.rope.turn(query, torch.tensor([26 + offset]))[0] for offset in OFFSETS) / 17


def check_the_needle_s_block_is_first_wherever_it_lies(maths):
    """F2: one key lies where the question's query looks, and the model's usual one does not."""
    cartridge, probe = case(tokens=1, layers=1)
    away = -probe.rope.pairs(probe.queries).mean(2)
    probe.calibration = Calibration(away.to(torch.complex64), away.abs().float(), "fake", 64)
    unseen = 0
    for block in range(6):
        kv = cartridge.kv.clone()
        kv[block, 0, 0, :, 1] = 2 * torch.stack([looked_for(probe, 0), looked_for(probe, 2)])
        planted = evolve(cartridge, kv=kv)
        for split in (None, PINS):
            found = scored(maths, planted, probe, split, blend=1.0, pool="max").argmax(-1)
            assert found.tolist() == [[block, block]]
        usual = scored(maths, planted, probe, blend=0.0, pool="max").argmax(-1)
        unseen += usual.tolist() != [[block, block]]
    assert unseen >= 4


def check_a_loud_head_counts_no_more(maths):
    """GQA: each head has a scale of its own, and a key that one head alone wants is first."""
    cartridge, probe = case()
    plain = scored(maths, cartridge, probe, blend=1.0)
    probe.queries[:, 1] *= 100
    close(scored(maths, cartridge, probe, blend=1.0), plain)

    cartridge, probe = case(tokens=1, layers=1)
    kv = cartridge.kv.clone()
    kv[3, 0, 0, 0, 2] = 3 * looked_for(probe, 1)
    scores = scored(maths, evolve(cartridge, kv=kv), probe, blend=1.0, pool="max")
    assert scores[0, 0].argmax() == 3


def check_pins_do_not_set_the_scale(maths):
    """A sink in a pinned block leaves the others' scores; in a mid block it does not."""
    cartridge, probe = case()
    for block, still in ((0, True), (5, True), (2, False)):
        kv = cartridge.kv.clone()
        kv[block, :, 0] *= 50
        before, after = (
            scored(maths, each, probe, PINS)[..., [1, 3, 4]]
            for each in (cartridge, evolve(cartridge, kv=kv))
        )
        assert torch.allclose(before, after, atol=1e-5) == still
    everything = Split.pin(6, anchor=3, recent=3)
    close(scored(maths, cartridge, probe, everything), scored(maths, cartridge, probe))


def check_late_layers_are_averaged(maths):
    """Of five layers the last three; their keys alone are kept."""
    cartridge, probe = case(layers=5)
    every = scored(maths, cartridge, probe, PINS)
    late = scored(maths, cartridge, probe, PINS, first_layer=2)
    assert every.shape == (5, 2, 6)
    close(late, every[2:].mean(0, keepdim=True))
    assert late.dtype == torch.float32
    assert maths.summarise(cartridge, probe, 2)["keys"].shape == (3, 2, 6, 4, 8)


def check_layer_0_scores_alone(maths):
    """Its queries know nothing of the document, so that no block is shown."""
    cartridge, probe = case(layers=3)
    every = scored(maths, cartridge, probe, PINS)
    assert probe.shown == [0, 5]
    close(scored(maths, cartridge, probe, PINS, source="layer0"), every[:1])
    assert probe.shown == []
    close(scored(maths, cartridge, probe, PINS, source="full"), every)
    assert probe.shown == [0, 1, 2, 3, 4, 5]


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(blending)


PLANTED = {
    "the shares swapped": (
        "(1 - own) * torch.view_as_complex(centre.double())[:count] + own * asked.mean(2)",
        "own * torch.view_as_complex(centre.double())[:count] + (1 - own) * asked.mean(2)",
    ),
    "the question on top of the centre": ("(1 - own) * torch.view", "torch.view"),
    "the last token for the mean": ("own * asked.mean(2)", "own * asked[:, :, -1]"),
    "a sum over the question": ("own * asked.mean(2)", "own * asked.sum(2)"),
    "the calibration's length alone": (
        "(1 - own) * length.double()[:count] + own * asked.abs().mean(2)",
        "length.double()",
    ),
    "the length of the mean": ("own * asked.abs().mean(2)", "own * asked.mean(2).abs()"),
    "queries averaged over two heads": (
        "probe.rope.pairs(queries[-len(keys) :])",
        "probe.rope.pairs(queries[-len(keys) :].roll(1, 1) + queries[-len(keys) :]) / 2",
    ),
    "the first layers' queries": ("queries[-len(keys) :]", "queries[: len(keys)]"),
    "the last layer for layer 0": ("return queries[:1]", "return queries[-1:]"),
    "every layer for layer 0": ('return queries[:1] if source == "layer0" else', "return"),
    "values for keys": ("kv[:, first_layer:, 0]", "kv[:, first_layer:, 1]"),
    "the first layers' keys": ("kv[:, first_layer:, 0]", "kv[:, : -first_layer or None, 0]"),
    "the first layers' centres": ("centre[first_layer:]", "centre[: -first_layer or None]"),
    "the first layers' lengths": ("length[first_layer:]", "length[: -first_layer or None]"),
    "heads and blocks swapped": ("permute(1, 2, 0, 3, 4)", "permute(1, 2, 3, 0, 4)"),
    "a maximum over late layers": ("scores.double().mean(0,", "scores.double().amax(0,"),
    "scores left in float64": ("(0, keepdim=True).float()", "(0, keepdim=True)"),
    "the scale of all tokens": ("split.mid or range(num_blocks)", "range(num_blocks)"),
    "the scale of the pins": ("split.mid or", "(*split.anchor, *split.recent) or"),
    "the scale of each block's first tokens": ("* block_size + torch", "* 0 + torch"),
    "the position of the last block's end": (
        "torch.tensor(cartridge.layout.num_tokens)",
        "torch.tensor(cartridge.layout.num_blocks * cartridge.layout.block_size)",
    ),
    "pinned: without the recent blocks": ("[*split.anchor, *split.recent]", "[*split.anchor]"),
    "full: only the pins": ("visible[:] = True", "visible[0, list(split.anchor)] = True"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], blending))


def test_what_cannot_be_scored_is_refused():
    cartridge, probe = case()
    params, summary = asked_query.Params(), blending.summarise(cartridge, probe, 0)
    said = "this scorer runs the question through the model, and none is at hand; give one with"
    with pytest.raises(ConfigError, match=said):
        asked_query.kri_score_query(summary, QUESTION, PINS, None, params)
    with pytest.raises(ConfigError, match="the question has no tokens; ask something"):
        asked_query.kri_score_query(summary, Query(()), PINS, probe, params)
    said = "holds features, keys but no centre, length, num_tokens: another scorer made it"
    other = {"features": torch.ones(6, 2), "keys": summary["keys"]}
    with pytest.raises(ArtifactError, match=said):
        asked_query.kri_score_query(other, QUESTION, PINS, probe, params)


def test_without_a_calibration_it_says_how_to_make_one():
    cartridge, probe = case()
    probe.calibration = None

    with pytest.raises(
        ConfigError, match=r"'kri-t-q' needs .* run kri-core calibrate --model fake"
    ):
        asked_query.kri_summarise_blocks(cartridge, probe)


def test_a_share_is_from_0_to_1():
    for share, said in ((1.5, "'blend' must be <= 1"), (-0.5, "'blend' must be >= 0")):
        with pytest.raises(ValueError, match=said):
            asked_query.Params(blend=share)


def test_late_is_the_second_half_of_the_layers():
    """Of five layers the last three."""
    cartridge, probe = case(layers=5)
    late, every = (
        module.kri_summarise_blocks(cartridge, probe) for module in (late_query, asked_query)
    )

    for name in ("keys", "centre", "length"):
        assert late[name].equal(every[name][2:])
    scores = late_query.kri_score_query(late, QUESTION, PINS, probe, late_query.Params())
    assert scores.shape == (1, 2, 6)


def test_the_summary_is_of_the_cartridge_s_own_dtype_and_memory():
    """Exact, and neither a view of a mapped file nor more than the keys."""
    cartridge, probe = case()
    half = evolve(cartridge, kv=cartridge.kv.bfloat16(), tail=cartridge.tail.bfloat16())
    keys = blending.summarise(half, probe, 0)["keys"]

    assert keys.dtype == torch.bfloat16
    assert keys.is_contiguous()
    assert keys.untyped_storage().nbytes() == half.kv.nbytes // 2
    assert keys.flatten(2, 3).equal(half.keys())


def test_float32_ranks_as_float64():
    cartridge, probe = case()
    single = evolve(cartridge, kv=cartridge.kv.float(), tail=cartridge.tail.float())
    exact, close_to = (scored(blending, each, probe, PINS) for each in (cartridge, single))

    assert exact.mean((0, 1)).argsort().tolist() == close_to.mean((0, 1)).argsort().tolist()
