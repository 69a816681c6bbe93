"""solo: what it must choose, by hand or by a loop; a wrong formula is noticed.

Every check takes the maths under test, so that it also runs on the planted bugs at the end.
"""

import math

import pytest
import torch
from kri_plugin_diverse import solo_gain

from kri_core import ConfigError, EngineError, ProbeText, Readout, Router, Split, parse
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

TEXT = ProbeText("", (0,))
F2 = ((0.225, 0.225, 0.225, 0.225, 0.05, 0.05), (0, 0, 0, 0, 1, 2))  # masses, contents


def one_layer(masses, contents):
    """A probe on one-token blocks of these attention masses whose values are one-hot.

    One layer, one head; the probe token's own key has e⁻⁴⁰ of the mass. The residual stream is the
    token's own dimension and one for each content, and so are the logits.
    """
    zeros = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    query = zeros.clone()
    query[0, 0, 0, 3] = 1.0
    model = FakeModel(torch.eye(4, dtype=torch.float64), query, zeros, zeros, zeros + torch.eye(4))
    turned = model.run((0,), (len(masses),)).queries[0, 0, 0]  # [head_dim]
    logits = torch.tensor(masses, dtype=torch.float64).log() + 40
    keys = logits[:, None] * turned * 2 / turned.square().sum()
    values = torch.eye(4, dtype=torch.float64)[[1 + content for content in contents]]
    kv = torch.stack([keys, values])[None, :, None]  # [layer, 2, kv_head, token, head_dim]
    cartridge = cartridge_of(model.layout(1, len(masses)), kv, (0,) * len(masses))
    return FakeProbe(model, cartridge, (TEXT,))


class Answers:
    """A probe whose next-token distribution is given for every block, and for all of them."""

    texts = (TEXT,)

    def __init__(self, full, *by_block):
        self.full, self.by_block = full, by_block

    def forward(self, token_ids, *, read, visible, last):
        rows = [
            self.full if row.all() else self.by_block[int(row.int().argmax())] for row in visible
        ]
        return Readout(logits=torch.tensor(rows)[:, None])

    def each(self, name, units, run):
        return run(units)


def free(num_blocks, count):
    """No pins."""
    return Split.pin(num_blocks, anchor=0, recent=0, mid_budget=count)


def divergence_by_hand(kept):
    """KL(all ‖ kept) of F2: the stream is (1, o), divided by its root mean square."""
    masses, contents = F2
    answers = []
    for blocks in (range(6), kept):
        shares = [sum(masses[b] for b in blocks if contents[b] == content) for content in range(3)]
        stream = [1.0, *(share / sum(shares) for share in shares)]
        size = math.sqrt(sum(x * x for x in stream) / 4 + 1e-6)
        weights = [math.exp(x / size) for x in stream]
        answers.append([weight / sum(weights) for weight in weights])
    return sum(p * math.log(p / q) for p, q in zip(*answers, strict=True))


def check_the_gain_is_the_kl_that_a_block_takes_away(maths):
    for pins, ends in (([], {}), ([5], {"recent": 1}), ([0, 4, 5], {"anchor": 1, "recent": 2})):
        split = Split.pin(6, **{"anchor": 0, "recent": 0, "mid_budget": 1} | ends)
        wanted = [divergence_by_hand([*pins, block]) for block in split.mid]
        assert maths.divergences(one_layer(*F2), split) == pytest.approx(wanted, abs=1e-9)


def check_it_does_not_see_that_its_choices_repeat_each_other(maths):
    """F2 of ALGORITHMS 11.B: copies alone, as top-k on mass; only a pin's copy is seen."""
    assert maths.most_telling_alone(one_layer(*F2), free(6, 3)) == (0, 1, 2)
    masses, contents = (0.3, 0.3, 0.2, 0.2), (0, 0, 1, 2)
    pinned = Split.pin(4, anchor=1, recent=0, mid_budget=2)

    assert set(maths.most_telling_alone(one_layer(masses, contents), pinned)) == {2, 3}


def check_it_keeps_the_best_of_a_known_order(maths):
    """Of two tokens, p = .5: the further the logits are apart, the worse."""
    probe = Answers([0.0, 0.0], [0.0, 3.0], [0.0, 1.0], [0.0, -2.0], [0.0, 0.5])

    assert maths.most_telling_alone(probe, free(4, 3)) == (3, 1, 2)


def check_the_kl_is_forward(maths):
    """All: (.1, .9). From it .368 to (.5, .5) and .376 to (.001, .999); to it .51 and .10."""
    probe = Answers([0.0, math.log(9)], [0.0, 7.0], [0.0, 0.0])

    assert maths.divergences(probe, free(2, 1)) == pytest.approx([0.376, 0.368], abs=1e-3)
    assert maths.most_telling_alone(probe, free(2, 1)) == (1,)


def check_it_is_the_mean_over_the_texts_after_their_last_token(maths):
    model = FakeModel.random()
    probe = FakeProbe(model, model.cartridge([7 * t % 64 for t in range(24)]))
    wanted = [0.0] * 6
    for text in probe.texts:
        visible = torch.cat([torch.ones(1, 6), torch.eye(6)]).bool()
        whole, *parts = probe.forward(text.token_ids, read=("logits",), visible=visible).logits
        p = whole[-1].double().softmax(0)
        for block, part in enumerate(parts):
            q = part[-1].double().softmax(0)
            wanted[block] += float((p * (p / q).log()).sum()) / len(probe.texts)

    assert maths.divergences(probe, free(6, 1)) == pytest.approx(wanted)


def check_equal_blocks_go_in_order(maths):
    """Each run rounds in its own way: what float32 cannot tell apart is a tie, and no more is."""
    off = [[0.0, 1 + shift] for shift in (1.4e-5, 7e-6, 0.0, 7e-6)]
    assert maths.most_telling_alone(Answers([0.0, 0.0], *off), free(4, 2)) == (0, 1)
    off[0][1] = 1 + 1.4e-4  # 3e-5 nats more
    assert maths.most_telling_alone(Answers([0.0, 0.0], *off), free(4, 3)) == (1, 2, 3)


def check_a_small_divergence_is_not_lost_in_rounding(maths):
    """Two tokens, p = .5: KL is about x²/8."""
    probe = Answers([0.0, 0.0], [0.0, 1e-3], [0.0, 2e-3])

    assert maths.divergences(probe, free(2, 1)) == pytest.approx([1.25e-7, 5e-7], rel=1e-3)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(solo_gain)


PLANTED = {
    "the KL the other way round": (
        "(whole.exp() * (whole - part))",
        "(part.exp() * (part - whole))",
    ),
    "weighted by the other one": ("(whole.exp() *", "(part.exp() *"),
    "the KL's sign": ("(whole - part)", "(part - whole)"),
    "a KL in float32": (".double().log_softmax", ".log_softmax"),
    "KL after the first token": ("last=1).logits", "last=None).logits[:, :1]"),
    "the first text alone": (
        "zip(probe.texts, full, strict=True)",
        "[(probe.texts[0], full[0])] * len(full)",
    ),
    "a sum over texts": ("return total / len(full)", "return total"),
    "left out instead of added": (
        "list(blocks)] = True",
        "list(blocks)] = True; visible = ~visible",
    ),
    "nothing is added": ("list(blocks)] = True", "list(blocks)] |= False"),
    "the pins are forgotten": ("visible[:, pins] = True", "pass"),
    "the worst is kept": ("min(left.values())", "max(left.values())"),
    "ties to the later block": ("in left.items() if", "in reversed(left.items()) if"),
    "only exact ties": ("value <= best + TIE", "value <= best"),
    "ties too far apart": ("TIE = 1e-5", "TIE = 1e-4"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], solo_gain))


def test_without_a_model_it_says_what_to_do():
    said = "solo runs the model to choose blocks, and none is at hand; give one with --model"
    with pytest.raises(ConfigError, match=said):
        Router.from_config(parse("A0R0K1(~solo)")).route(one_layer(*F2).cartridge)


def test_logits_that_are_not_finite_are_refused():
    said = "solo: the model's logits are not finite; run it with --dtype float32"
    probe = Answers([0.0, 0.0], [0.0, math.inf], [0.0, 1.0])
    with pytest.raises(EngineError, match=said):
        solo_gain.most_telling_alone(probe, free(2, 1))


def test_on_a_real_model_it_is_a_loop_over_the_blocks():
    """Six blocks of a small Llama, two pinned: one row at a time, whatever the batch."""
    pytest.importorskip("transformers")
    from kri_core.substrate.hf import HfProbe
    from kri_core.testing.tiny import tiny_cartridge, tiny_llama

    model = tiny_llama()
    cartridge = tiny_cartridge(model)
    texts = (ProbeText("", (65, 9, 30)), ProbeText("", (7, 80)))
    by_block = {}
    for block in range(1, 5):
        visible = torch.tensor([[True] * 6, [b in (0, block, 5) for b in range(6)]])
        pairs = [
            HfProbe(model, cartridge, texts, 1)
            .forward(text.token_ids, read=("logits",), visible=visible)
            .logits[:, -1]
            .double()
            .softmax(-1)
            for text in texts
        ]
        by_block[block] = sum(float((p * (p / q).log()).sum()) for p, q in pairs)
    wanted = sorted(by_block, key=lambda block: by_block[block])[:2]
    for batch in (1, 3, 16):
        probe = HfProbe(model, cartridge, texts, batch)
        manifest = Router.from_config(parse("A1R1K2(~solo)")).route(cartridge, probe=probe)
        assert manifest.kept == (0, *sorted(wanted), 5)
        assert manifest.stack == "A1R1K2(~solo)"
