"""kri-d-greedy: what it must choose, by hand or by brute force; a wrong formula is noticed.

Every check takes the maths under test, so that it also runs on the planted bugs at the end.
"""

import itertools
import math

import pytest
import torch
from kri_plugin_d import greedy_forward
from kri_plugin_d.leave_one_out import leave_one_out

from kri_core import ConfigError, EngineError, ProbeText, Readout, Router, Split, parse
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

TEXT = ProbeText("", (0,))
ONE = {"anchor": 0, "recent": 0, "mid_budget": 1}
F1 = ((0.45, 0.45, 0.10), (0, 0, 1))  # attention masses; which blocks say the same
F2 = ((0.225, 0.225, 0.225, 0.225, 0.05, 0.05), (0, 0, 0, 0, 1, 2))


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


def error(masses, contents, kept):
    """‖o_S − o‖ of the attention's output, by hand."""
    mass, values = torch.tensor(masses), torch.eye(3)[list(contents)]
    some = mass[list(kept), None]
    return float(((some * values[list(kept)]).sum(0) / some.sum() - mass @ values).norm())


def choose(maths, probe, count, anchor=0, recent=0, direction="forward"):
    num_blocks = probe.cartridge.layout.num_blocks
    probe.kept.clear()  # what a check asked for itself
    split = Split.pin(num_blocks, anchor=anchor, recent=recent, mid_budget=count)
    return maths.most_agreeing(probe, split, direction)


def random_probe(seed, num_blocks=9):
    """Random weights, large enough to make answers differ; two texts."""
    model = FakeModel.random(seed)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 64, (4 * num_blocks + 2,), generator=draw).tolist()
    return FakeProbe(model, model.cartridge(tokens))


def by_hand(probe, kept, direction="forward"):
    """Mean KL between all blocks and the kept ones, token by token of the vocabulary."""
    model, cartridge = probe.model, probe.cartridge
    layout, total = cartridge.layout, 0.0
    past = [torch.cat([of(), cartridge.tail[:, side]], 2)
            for side, of in enumerate((cartridge.keys, cartridge.values))]  # fmt: skip
    for text in probe.texts:
        answers = []
        for blocks in (range(layout.num_blocks), kept):
            seen = torch.zeros(layout.num_tokens, dtype=torch.bool)
            seen[[*layout.tokens_of(list(blocks)), *layout.tail]] = True
            places = range(layout.num_tokens, layout.num_tokens + len(text.token_ids))
            logits = model.run(text.token_ids, places, past, seen).logits[-1].double()
            answers.append((logits.exp() / logits.exp().sum()).tolist())
        p, q = answers if direction == "forward" else answers[::-1]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total / len(probe.texts)


def naive(probe, mid, pins, count, direction="forward"):
    chosen = []
    while len(chosen) < count:
        rest = [b for b in mid if b not in chosen]
        chosen.append(min(rest, key=lambda b: by_hand(probe, [*pins, *chosen, b], direction)))
    return tuple(chosen)


def check_f1_takes_a_twin_where_leaving_one_out_takes_the_unique_block(maths):
    """ALGORITHMS 11.B: error .14 against 1.27."""
    probe = one_layer(*F1)
    shifts = leave_one_out(probe.cartridge, probe, TEXT, "mask").distance[:, 0].tolist()

    assert shifts == pytest.approx([0.116, 0.116, 0.141], abs=6e-4)
    assert choose(maths, probe, 1) == (0,)
    assert error(*F1, [0]) == pytest.approx(0.14, abs=5e-3)
    assert error(*F1, [2]) == pytest.approx(1.27, abs=5e-3)


def check_f2_is_the_optimum_where_leaving_one_out_is_not(maths):
    """ALGORITHMS 11.B: at K = 2 the errors are .122 and 1.10, at K = 3 .071 and .254."""
    probe = one_layer(*F2)
    shifts = leave_one_out(probe.cartridge, probe, TEXT, "mask").distance[:, 0].tolist()
    left_out = sorted(range(6), key=lambda b: (-round(shifts[b], 6), b))

    assert shifts == pytest.approx([0.036] * 4 + [0.069] * 2, abs=6e-4)
    for count, greedy, other in ((2, 0.122, 1.10), (3, 0.071, 0.254)):
        kept = choose(maths, probe, count)
        sets = itertools.combinations(range(6), count)
        assert error(*F2, kept) == pytest.approx(min(error(*F2, some) for some in sets))
        assert error(*F2, kept) == pytest.approx(greedy, abs=6e-4)
        assert error(*F2, left_out[:count]) == pytest.approx(other, abs=5e-3)
    assert choose(maths, probe, 3) == (0, 1, 4)


def check_the_first_of_two_copies_gets_all_the_gain(maths):
    """The second one's is 0, as is a pinned copy's twin's."""
    masses, contents = (0.3, 0.1, 0.3, 0.2, 0.1), (0, 1, 0, 1, 2)
    probe = one_layer(masses, contents)
    divergence = maths.Divergence.of(probe, 5, "forward")
    first, copy, other = divergence.with_each([], [0, 2, 1])
    second, third = divergence.with_each([0], [2, 3])

    assert first < other - 0.05
    assert copy == pytest.approx(first, abs=1e-12)
    assert second == pytest.approx(first, abs=1e-12)
    assert third < second - 0.01
    assert choose(maths, probe, 2) == (0, 3)
    assert choose(maths, probe, 1, anchor=1) == (3,)


def check_the_divergence_is_the_mean_kl_after_the_texts(maths):
    probe = random_probe(4)
    for direction in ("forward", "reverse"):
        divergence = maths.Divergence.of(probe, 9, direction)
        got = divergence.with_each([0, 8], [3, 5])
        wanted = [by_hand(probe, [0, 8, block], direction) for block in (3, 5)]
        assert got == pytest.approx(wanted, rel=1e-4)


class Answers:
    """A probe whose next-token distribution is given for every block, and for all of them."""

    texts = (TEXT,)

    def __init__(self, full, *by_block):
        self.full, self.by_block = full, by_block

    def forward(self, token_ids, *, read, visible, last):
        rows = [self.full if row.all() else self.by_block[int(row.int().argmax())]
                for row in visible]  # fmt: skip
        return Readout(logits=torch.tensor(rows)[:, None])

    def each(self, name, units, run):
        return run(units)


def check_equal_blocks_go_in_order(maths):
    """Each run rounds in its own way: what float32 cannot tell apart is a tie, and no more is."""
    off = [[0.0, 1 + shift] for shift in (1.4e-5, 7e-6, 0.0, 7e-6)]
    assert maths.most_agreeing(Answers([0.0, 0.0], *off), Split.pin(4, **ONE), "forward") == (0,)
    off[0][1] = 1 + 1.4e-4  # 3e-5 nats more
    assert maths.most_agreeing(Answers([0.0, 0.0], *off), Split.pin(4, **ONE), "forward") == (1,)
    assert choose(maths, one_layer((0.125,) * 8, (0,) * 8), 3, anchor=2) == (2, 3, 4)


def check_a_small_divergence_is_not_lost_in_rounding(maths):
    """Two tokens, p = .5: KL is −½ log(1 − tanh²(x/2)), about x²/8."""
    divergence = maths.Divergence.of(Answers([0.0, 0.0], [0.0, 1e-3], [0.0, 2e-3]), 2, "forward")

    assert divergence.with_each([], [0, 1]) == pytest.approx([1.25e-7, 5e-7], rel=1e-3)


def check_a_gain_may_grow(maths):
    """F2: alone, a unique block does harm; beside the copies it is the best one. Nothing lazy."""
    probe = one_layer(*F2)
    divergence = maths.Divergence.of(probe, 6, "forward")
    [alone] = divergence.with_each([], [4])
    copy, unique = divergence.with_each([0, 1], [2, 4])

    assert alone > by_hand(probe, []) + 0.05
    assert unique < copy - 1e-3


def check_it_is_the_greedy_set_of_its_divergence(maths):
    """Against a loop that runs the model by itself, both ways round, from pins and from none."""
    for seed in range(2):
        for direction in ("forward", "reverse"):
            for pins in ((), (0, 7, 8)):
                probe = random_probe(seed)
                mid = [b for b in range(9) if b not in pins]
                ends = {"anchor": 1, "recent": 2} if pins else {}
                wanted = naive(probe, mid, pins, 3, direction)
                assert choose(maths, probe, 3, direction=direction, **ends) == wanted


def check_it_is_near_the_optimum(maths):
    """ALGORITHMS 11.B, test 3: what is gained against every set of 3 of 8."""
    for seed in range(3):
        probe = random_probe(seed, num_blocks=8)
        start = by_hand(probe, ())
        gained = start - by_hand(probe, choose(maths, probe, 3))
        best = start - min(by_hand(probe, kept) for kept in itertools.combinations(range(8), 3))
        assert gained >= (1 - 1 / math.e) * best > 0


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(greedy_forward)


PLANTED = {
    "the KL the other way round": (
        'if self.direction == "forward"',
        'if self.direction != "forward"',
    ),
    "direction ignored": ('if self.direction == "forward"', "if True"),
    "weighted by the other one": ("(p.exp() * (p - q))", "(q.exp() * (p - q))"),
    "the KL's sign": ("(p.exp() * (p - q))", "(p.exp() * (q - p))"),
    "a KL in float32": (".double().log_softmax", ".log_softmax"),
    "KL after the first token": ("last=1).logits", "last=None).logits[:, :1]"),
    "the first text alone": (
        "zip(self.probe.texts, self.full, strict=True)",
        "[(self.probe.texts[0], self.full[0])]",
    ),
    "a sum over texts": ("return total / len(self.full)", "return total"),
    "left out instead of added": (
        "return self._from_full(visible)",
        "left = ~visible; left[:, list(kept)] = True; return self._from_full(left)",
    ),
    "nothing is added": ("list(blocks)] = True", "list(blocks)] |= False"),
    "the pins are forgotten": ("(*pins, *chosen), left", "chosen, left"),
    "what was chosen is forgotten": ("(*pins, *chosen), left", "pins, left"),
    "a block is added twice": ("if block not in chosen", "if block not in pins"),
    "ties to the later block": ("zip(left, values, strict=True)", "zip(left[::-1], values[::-1])"),
    "only exact ties": ("min(values) + TIE", "min(values)"),
    "ties too far apart": ("TIE = 1e-5", "TIE = 1e-4"),
    "a step shared by all sets": ("sorted(kept)", "0"),
    "a step shared by both directions": ("/{self.direction}/", "/"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], greedy_forward))


def test_without_a_model_it_says_what_to_do():
    said = (
        "kri-d-greedy runs the model to choose blocks, and none is at hand; give one with --model"
    )
    router = Router.from_config(parse("A0R0K1(~kri-d-greedy)"))
    with pytest.raises(ConfigError, match=said):
        router.route(one_layer(*F1).cartridge)


def test_logits_that_are_not_finite_are_refused():
    said = "kri-d-greedy: the model's logits are not finite; run it with --dtype float32"
    probe = Answers([0.0, 0.0], [0.0, math.inf], [0.0, 1.0])
    with pytest.raises(EngineError, match=said):
        greedy_forward.most_agreeing(probe, Split.pin(2, **ONE), "forward")


def test_a_stack_needs_no_scorer_and_records_the_direction():
    """From the fixture of F2, pins and all."""
    probe = one_layer(*F2)
    router = Router.from_config(parse("A1R1K1(~KRI_D_greedy[direction=reverse])"))
    manifest = router.route(probe.cartridge, probe=probe)

    assert manifest.stack == "A1R1K1(~kri-d-greedy[direction=reverse])"
    assert (manifest.kept[0], manifest.kept[-1], len(manifest.kept)) == (0, 5, 3)


def test_on_a_real_model_the_batch_changes_nothing():
    """Six blocks of a small Llama: as a loop that runs one row at a time, over all sets."""
    pytest.importorskip("transformers")
    from kri_core.substrate.hf import HfProbe
    from kri_core.testing.tiny import tiny_cartridge, tiny_llama

    model = tiny_llama()
    cartridge = tiny_cartridge(model)
    texts = (ProbeText("", (65, 9, 30)), ProbeText("", (7, 80)))

    def divergence(kept):
        total = 0.0
        for text in texts:
            visible = torch.tensor([[True] * 6, [block in kept for block in range(6)]])
            probe = HfProbe(model, cartridge, texts, 1)
            read = probe.forward(text.token_ids, read=("logits",), visible=visible)
            p, q = read.logits[:, -1].double().softmax(-1)
            total += float((p * (p / q).log()).sum())
        return total

    wanted = [0, 5]
    for _ in range(2):
        left = [block for block in range(6) if block not in wanted]
        wanted.append(min(left, key=lambda block: divergence([*wanted, block])))
    for batch in (1, 3, 16):
        router = Router.from_config(parse("A1R1K2(~kri-d-greedy)"))
        manifest = router.route(cartridge, probe=HfProbe(model, cartridge, texts, batch))
        assert manifest.kept == tuple(sorted(wanted))
