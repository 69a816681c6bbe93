"""The five tests of ALGORITHMS 3.5 and sums by hand, in float64, on models with known answers.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import functools
import math

import pytest
import torch
from attrs import evolve, fields
from kri_plugin_g import first_order

from kri_core import Gradients, ProbeText
from kri_core.testing import FakeModel, FakeProbe, is_noticed, plant_bug

TEXTS = (ProbeText("a", (5, 9, 2, 7, 11)), ProbeText("b", (3, 8, 1)))
DOCUMENT = tuple(range(20, 46))  # 26 tokens: six blocks of 4 and a tail of 2
IDS, TARGETS = (3, 8, 1), (6, 4)
STEP = 1e-5
PLACES = ((0, 0, 0), (1, 1, 3), (2, 0, 5))  # layer, kv_head, block


MODEL = FakeModel.random(dtype=torch.float64)
CARTRIDGE = MODEL.cartridge(DOCUMENT, dtype=torch.float64)


def fresh_probe():
    return FakeProbe(MODEL, CARTRIDGE, TEXTS)


def keys_and_values():
    sides = CARTRIDGE.keys(), CARTRIDGE.values()
    return [torch.cat([side, CARTRIDGE.tail[:, at]], 2) for at, side in enumerate(sides)]


def loss(past, nudges=None):
    """Mean negative log likelihood of the targets, by the definition."""
    logits = MODEL.run(IDS, range(26, 29), past, nudges=nudges).logits
    log_p = logits[-len(TARGETS) :].log_softmax(-1)
    return -sum(float(row[token]) for row, token in zip(log_p, TARGETS, strict=True)) / len(TARGETS)


@functools.cache
def slope(layer, head, tokens):
    """Gradient [8] of the loss by one displacement of these tokens' keys, by finite differences."""
    keys, values = keys_and_values()
    slopes = []
    for axis in range(8):
        ends = []
        for sign in (1, -1):
            moved = keys.clone()
            moved[layer, head, tokens, axis] += sign * STEP
            ends.append(loss((moved, values)))
        slopes.append((ends[0] - ends[1]) / (2 * STEP))
    return slopes


@functools.cache
def slope_without(layer, head, block):
    """Slope of the loss along o(ε) = o + ε (o₋ᵦ − o), o₋ᵦ by weights that sum to 1 without it."""
    past = keys_and_values()
    trace = MODEL.run(IDS, range(26, 29), past)
    values = torch.cat([past[1], trace.values], 2).repeat_interleave(2, 1)
    weights = trace.weights[layer].clone()
    weights[..., 4 * block : 4 * block + 4] = 0
    without = weights / weights.sum(-1, keepdim=True) @ values[layer]
    way, group = torch.zeros(3, 4, 3, 8).double(), slice(2 * head, 2 * head + 2)
    way[layer, group] = (without - trace.outputs[layer])[group]
    still = torch.zeros(3, 2, 29, 8).double()
    ends = [loss(past, (still, sign * STEP * way)) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * STEP)


def close(got, wanted, tolerance=1e-9):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=tolerance)


def check_the_gradient_is_the_slope_of_the_loss(maths):
    """3.5, test 2: all keys of a block moved together; two query heads to the KV head."""
    got = maths.measure(CARTRIDGE, fresh_probe(), IDS, TARGETS)[maths.SHIFT]
    for layer, head, block in PLACES:
        together = slope(layer, head, tuple(range(4 * block, 4 * block + 4)))
        assert float(got[layer, head, block]) == pytest.approx(math.hypot(*together), rel=1e-5)


def check_sum_of_norms_moves_one_key_at_a_time(maths):
    got = maths.measure(CARTRIDGE, fresh_probe(), IDS, TARGETS)[maths.NORMS]
    alone = [math.hypot(*slope(1, 1, (token,))) for token in range(12, 16)]
    assert float(got[1, 1, 3]) == pytest.approx(sum(alone), rel=1e-5)


def check_the_gate_is_the_slope_towards_the_output_without_the_block(maths):
    got = maths.measure(CARTRIDGE, fresh_probe(), IDS, TARGETS)[maths.CHANGE]
    for place in PLACES:
        assert float(got[place]) == pytest.approx(slope_without(*place), rel=1e-5)


def check_a_gate_by_hand(maths):
    """Half the mass on a block that pulls the target up by 1; leaving it out costs half of that.

    The other block pulls it down, so the loss is lower without it.
    """
    nothing = torch.zeros(1, 1, 1).double()
    values = torch.tensor([1.0, 0.0]).double().reshape(1, 2, 1, 1)
    half = torch.full((1, 1, 2), 0.5).double()
    output, downhill = nothing + 0.5, nothing - 1
    got = maths.changes_of_layer(nothing, values * 0, values, half, output, downhill)
    assert got.tolist() == [[0.5, -0.5]]


def check_all_the_attention_on_one_block_is_finite(maths):
    """Mass 1 in float32: the clamp makes the factor 10⁶."""
    nothing = torch.zeros(1, 1, 1)
    values = torch.tensor([1.0, 0.0]).reshape(1, 2, 1, 1)
    masses = torch.tensor([1.0, 0.0]).reshape(1, 1, 2)
    got = maths.changes_of_layer(nothing, values * 0, values, masses, nothing + 0.5, nothing - 1)
    assert float(got[0, 0]) == pytest.approx(5e5, rel=0.1)
    assert float(got[0, 1]) == 0


def check_a_block_without_attention_scores_nothing(maths):
    """3.5, test 3: logits of −2·10⁴ in every layer; zero keys, which take mass, are the control."""
    shown = torch.ones(1, 6, dtype=torch.bool)
    shown[0, 2] = False
    queries = fresh_probe().forward(IDS, read=["queries"], visible=shown).queries[0]
    folded = queries.reshape(3, 2, 6, 8)  # a key of 8 dimensions meets 2 × 3 queries
    target = torch.full((3, 2, 6, 1), -2e4 * 8**0.5, dtype=torch.float64)
    unseen, zeroed = CARTRIDGE.kv.clone(), CARTRIDGE.kv.clone()
    unseen[2, :, 0] = torch.linalg.lstsq(folded, target).solution.mT
    zeroed[2, :, 0] = 0
    for kv, is_seen in ((unseen, False), (zeroed, True)):
        held = evolve(CARTRIDGE, kv=kv)
        got = maths.measure(held, FakeProbe(MODEL, held), IDS, TARGETS)
        assert bool(got[..., 2].any()) == is_seen
        assert got[:, :, :, [0, 1, 3, 4, 5]].abs().amin() > 0


def check_a_loss_of_another_scale_ranks_the_same(maths):
    """3.5, test 3: gradients c times as large give scores |c| times as large."""
    scaled = fresh_probe()
    plain = scaled.gradients

    def times(token_ids, targets):
        given = plain(token_ids, targets)
        names = [item.name for item in fields(Gradients)]
        return Gradients(**{name: -2.5 * getattr(given, name) for name in names})

    scaled.gradients = times
    once, many = (
        maths.measure(CARTRIDGE, probe, IDS, TARGETS) for probe in (fresh_probe(), scaled)
    )
    close(many[maths.SHIFT], 2.5 * once[maths.SHIFT])
    close(many[maths.CHANGE], -2.5 * once[maths.CHANGE])
    wanted = maths.score_gradient(CARTRIDGE, fresh_probe(), "shift", "text")
    close(maths.score_gradient(CARTRIDGE, scaled, "shift", "text"), wanted, 1e-5)


def saturated():
    """One layer, two heads, one query. Head 0 has mass .999 on block 3, which holds the answer.

    Head 1 sees the other blocks alike; their values speak a tenth as loudly for it or against it.
    """
    width, answer = 8, torch.eye(8)[1].double()
    plain = FakeModel.random(num_layers=1, dtype=torch.float64)
    nothing = torch.zeros(1, 2, width, 8, dtype=torch.float64)
    model = evolve(
        plain,
        embedding=torch.eye(4, width).double(),
        query=plain.query[:, :2, :width],
        key=nothing,  # the text's own key has logit 0, and its value is 0
        value=nothing,
        output=answer.expand(1, 2, 8, width) / 8,  # a head's output is its values' mean, times it
    )
    empty = evolve(model.cartridge(range(4)), token_ids=())
    cartridge = evolve(
        empty,
        layout=evolve(empty.layout, num_tokens=24),
        kv=torch.zeros(6, 1, 2, 2, 4, 8, dtype=torch.float64),
        tail=torch.zeros(1, 2, 2, 0, 8, dtype=torch.float64),
    )
    probe = FakeProbe(model, cartridge, (ProbeText("asks", (0, 1)),))
    queries = probe.forward([0], read=["queries"]).queries[0, 0, :, 0]  # [q_head, head_dim]
    unit = queries * 8**0.5 / queries.square().sum(-1, keepdim=True)  # a key of logit 1
    kv = cartridge.kv
    kv[3, 0, 0, 0] = math.log(999 * 21 / 4) * unit[0]  # 20 other tokens and the text's own
    kv[:, 0, 0, 1] = 3 * unit[1]
    kv[3, 0, 0, 1] = -30 * unit[1]
    kv[3, 0, 1, 0] = 1
    loudness = torch.tensor([0.1, -0.1, 0.2, 0, -0.2, 0.15]).double()
    kv[:, 0, 1, 1] = loudness[:, None, None]
    return cartridge, probe


def check_saturation_hides_the_answer_from_the_gradient_alone(maths):
    """3.5, test 4 and fixture F5: kri-g has the answer last, kri-g-gate and kri-d first."""
    cartridge, probe = saturated()
    mass = probe.forward([0], read=["block_mass"]).block_mass[0, 0, 0, 0]
    assert float(mass[3]) == pytest.approx(0.999)
    gradient = maths.score_gradient(cartridge, probe, "shift", "text").mean((0, 1))
    gate = maths.score_gate(cartridge, probe, "positive", "text").mean((0, 1))
    visible = torch.cat([torch.ones(1, 6), 1 - torch.eye(6)]).bool()
    log_p = probe.forward([0], read=["logits"], visible=visible).logits[:, -1].log_softmax(-1)
    kri_d = (log_p[0].exp() * (log_p[0] - log_p[1:])).sum(-1)

    assert int(gradient.argmin()) == 3
    assert int(gate.argmax()) == int(kri_d.argmax()) == 3
    assert float(gate[3]) > 5 * float(gate[[0, 1, 2, 4, 5]].max())
    assert float(gate[1]) == 0  # speaks against the answer
    either = maths.score_gate(cartridge, probe, "absolute", "text").mean((0, 1))
    assert float(either[1]) > 0


def check_equal_values_everywhere_leave_no_gradient(maths):
    """3.5, test 5: the output is the same, whatever is attended to. One louder block undoes it."""
    plain = FakeModel.random(num_layers=1, dtype=torch.float64)
    embedding = plain.embedding.sign()
    embedding[:, 0] = 1  # every token's normed input starts with 1, which is all that values read
    value = torch.zeros_like(plain.value)
    value[:, :, 0] = plain.value[:, :, 0]
    model = evolve(plain, embedding=embedding, value=value)
    cartridge = model.cartridge(DOCUMENT, dtype=torch.float64)
    louder = cartridge.kv.clone()
    louder[4, :, 1] += 1
    for kv, most in ((cartridge.kv, 1e-12), (louder, 10)):
        held = evolve(cartridge, kv=kv)
        got = maths.measure(held, FakeProbe(model, held), IDS, TARGETS).abs().max()
        assert float(got) < most
    assert float(got) > 1e-3


def check_a_sign_by_hand(maths):
    changes = torch.tensor([-2.0, 1.0, 0.0])
    assert maths.signed(changes, "positive").tolist() == [0, 1, 0]
    assert maths.signed(changes, "absolute").tolist() == [2, 1, 0]


def check_texts_are_averaged_after_division_by_their_own_mean(maths):
    """Each text's own next tokens: all but the last run, all but the first the targets."""
    probe = fresh_probe()
    pairs = [(text.token_ids[:-1], text.token_ids[1:]) for text in TEXTS]
    one, other = (maths.measure(CARTRIDGE, probe, *pair) for pair in pairs)
    for at, reduce in enumerate(("shift", "sum_of_norms")):
        wanted = (one[at] / one[at].mean() + other[at] / other[at].mean()) / 2
        close(maths.score_gradient(CARTRIDGE, probe, reduce, "text"), wanted, 1e-5)
    one, other = one[2].clamp(min=0), other[2].clamp(min=0)
    wanted = (one / one.mean() + other / other.mean()) / 2
    close(maths.score_gate(CARTRIDGE, probe, "positive", "text"), wanted, 1e-5)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(first_order)


PLANTED = {
    "the norm of the mean": ("key_sums.norm(dim=-1)", "key_sums.norm(dim=-1) / 4"),
    "the query heads averaged": ("key_sums.norm(dim=-1)", "key_sums.norm(dim=-1) / 2"),
    "a sum and no norm": ("gradients.key_sums.norm(dim=-1)", "gradients.key_sums.sum(-1)"),
    "norms in the shift's place": ("[shift, gradients.key_norms,", "[gradients.key_norms, shift,"),
    "the reduction mixed up": ('reduce == "shift"', 'reduce != "shift"'),
    "the sign of the change": ("return -(mass", "return (mass"),
    "the sign of 1 - a": ("mass / (1 - mass)", "mass / (1 + mass)"),
    "1/(1 - a) forgotten": ("mass / (1 - mass) *", "mass *"),
    "o_b alone": ("(part - whole)", "part"),
    "the part's mean without its weights": ("keys).softmax(-1)", "keys) * 0 + 1 / 4"),
    "no clamp": ("masses.clamp(max=MOST_MASS)", "masses"),
    "the logits not scaled": (" * float(read.scaling[0, layer])", ""),
    "the last token only": (".sum((1, 2))", "[:, :, -1].sum(1)"),
    "the mean of the group": (".sum((1, 2))", ".mean(1).sum(1)"),
    "harm counted when it should not be": ('sign == "absolute"', 'sign != "none"'),
    "negative scores": ("change.clamp(min=0)", "change"),
    "texts added up": ("total / len(per_text)", "total"),
    "texts as they are": ("total += scores / mean", "total += scores"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], first_order))


def test_a_shift_of_all_keys_changes_nothing():
    """3.5, test 1; without the text's own keys and the tail it would."""
    given = fresh_probe().gradients(IDS, TARGETS)

    close(given.key_sums.sum(2) + given.other_keys, torch.zeros(3, 2, 8))
    assert given.key_sums.sum(2).abs().min() > 1e-6
