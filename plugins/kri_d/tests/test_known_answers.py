"""What the maths must give, from sums written out by hand, and that a wrong formula is noticed.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import math

import pytest
import torch
from kri_plugin_d import leave_one_out

from kri_core import ProbeText
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

TEXTS = (ProbeText("a", (5, 9, 2, 7, 11)), ProbeText("b", (3, 8, 1)))
DOCUMENT = tuple(range(20, 44))  # 24 tokens, 6 blocks of 4


def naive(model, cartridge, text, removal):
    """Distance and relative distance [block][layer], KL [block]: loops over physical removal."""
    layout = cartridge.layout
    positions = range(layout.num_tokens, layout.num_tokens + len(text.token_ids))

    def run(kept):
        past = cartridge.keys()[:, :, kept], cartridge.values()[:, :, kept]
        if removal == "reprefill":
            document = model.run([cartridge.token_ids[token] for token in kept], kept)
            past = document.keys, document.values
        return model.run(text.token_ids, positions, past)

    everything = list(range(layout.num_tokens))
    full, answers = run(everything), []
    for block in range(layout.num_blocks):
        left_out = run([token for token in everything if token // layout.block_size != block])
        distances, relatives = [], []
        for layer in range(layout.num_layers):
            terms = [
                (math.dist(with_it, without), math.hypot(*with_it))
                for with_it, without in zip(
                    full.hidden[layer].tolist(), left_out.hidden[layer].tolist(), strict=True
                )
            ]
            distances.append(sum(shift for shift, _ in terms) / len(terms))
            relatives.append(sum(shift / length for shift, length in terms) / len(terms))
        p, q = (trace.logits.double().softmax(-1).tolist() for trace in (full, left_out))
        kl = [
            sum(a * math.log(a / b) for a, b in zip(*token, strict=True))
            for token in zip(p, q, strict=True)
        ]
        answers.append((distances, relatives, kl[-1], sum(kl) / len(kl)))
    return [torch.tensor(part) for part in zip(*answers, strict=True)]


def close(got, wanted, tolerance=1e-5):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=tolerance)


def check_both_removals_match_the_naive_loop(maths):
    model = FakeModel.random()
    cartridge = model.cartridge(DOCUMENT)
    probe = FakeProbe(model, cartridge)
    for text in TEXTS:
        for removal in ("mask", "reprefill"):
            shifts = maths.leave_one_out(cartridge, probe, text, removal)
            distance, relative, kl, mean_kl = naive(model, cartridge, text, removal)
            close(shifts.distance, distance)
            close(shifts.relative, relative)
            close(shifts.kl, kl)
            close(shifts.mean_kl, mean_kl)


def check_one_layer_matches_its_closed_form(maths):
    """ALGORITHMS 1.3: o − o₋ᵦ = a/(1−a) (oᵦ − o) per head, then through W_O."""
    model = FakeModel.random(num_layers=1, dtype=torch.float64)
    cartridge = model.cartridge(DOCUMENT, dtype=torch.float64)
    text = TEXTS[0]
    positions = range(24, 24 + len(text.token_ids))
    trace = model.run(text.token_ids, positions, (cartridge.keys(), cartridge.values()))
    values = torch.cat([cartridge.values(), trace.values], 2)[0].repeat_interleave(2, 0)
    output = trace.weights[0] @ values  # [q_head, token, head_dim]
    wanted = []
    for block in range(6):
        inside = trace.weights[0, :, :, 4 * block : 4 * block + 4]
        mass = inside.sum(-1, keepdim=True)
        of_block = inside @ values[:, 4 * block : 4 * block + 4] / mass
        shift = (mass / (1 - mass) * (of_block - output) @ model.output[0]).sum(0)
        wanted.append(shift.norm(dim=-1).mean())
    shifts = maths.leave_one_out(cartridge, FakeProbe(model, cartridge), text, "mask")

    close(shifts.distance[:, 0], torch.stack(wanted), 1e-6)


def twins(mass):
    """One layer, one head: two equal blocks of this mass, one of .98 − 2·mass, own key .02.

    Only the twins have a value, (1, 0); logits are log(mass / .02), the own key's is 0.
    """
    zeros = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    query = zeros.clone()
    query[0, 0, 0, 1] = 1.0  # the token (1, 0) asks for (0, √2), which RoPE turns
    model = FakeModel(torch.eye(2, dtype=torch.float64), query, zeros, zeros, zeros + torch.eye(2))
    turned = model.run((0,), (3,)).queries[0, 0, 0]  # [head_dim]
    logits = torch.tensor([mass, mass, 0.98 - 2 * mass]).double().div(0.02).log()
    keys = logits[:, None] * turned * math.sqrt(2) / turned.square().sum()
    values = torch.tensor([[1.0, 0], [1, 0], [0, 0]], dtype=torch.float64)
    kv = torch.stack([keys, values])[None, :, None]  # [layer, 2, kv_head, token, head_dim]
    return model, cartridge_of(model.layout(1, 3), kv, (0, 0, 0))


def check_duplicates_hide_each_other(maths):
    """ALGORITHMS 1.5: one of two twins moves the output by 2m − m/(1−m), both by 2m."""
    for mass, ratio in ((0.1, 0.44), (0.3, 0.29), (0.45, 0.09)):
        model, cartridge = twins(mass)
        probe = FakeProbe(model, cartridge)
        shifts = maths.leave_one_out(cartridge, probe, ProbeText("", (0,)), "mask")
        one = 2 * mass - mass / (1 - mass)
        unique = 2 * mass / (0.02 + 2 * mass) - 2 * mass
        close(shifts.distance, torch.tensor([[one], [one], [unique]]), 1e-6)
        assert one / (2 * mass) == pytest.approx(ratio, abs=0.005)


def check_texts_are_averaged_after_division_by_their_own_mean(maths):
    """Linear: the scores of two texts are the mean of each one's scores."""
    model = FakeModel.random()
    cartridge = model.cartridge(DOCUMENT)
    for norm, part in (("none", 0), ("relative", 1)):
        parts = [naive(model, cartridge, text, "mask")[part].T for text in TEXTS]
        wanted = (parts[0] / parts[0].mean() + parts[1] / parts[1].mean()) / 2
        probe = FakeProbe(model, cartridge, TEXTS)
        close(maths.score_kv_sum(cartridge, probe, norm, "all", "mask")[:, 0], wanted)
    for readout, part in (("last", 2), ("all", 3)):
        parts = [naive(model, cartridge, text, "reprefill")[part] for text in TEXTS]
        wanted = (parts[0] / parts[0].mean() + parts[1] / parts[1].mean()) / 2
        close(maths.score_kl(cartridge, probe, "reprefill", readout)[0, 0], wanted)


def check_last5_ranks_by_the_last_five_layers(maths):
    model = FakeModel.random(num_layers=7)
    cartridge = model.cartridge(DOCUMENT)
    probe = FakeProbe(model, cartridge, TEXTS[:1])
    scores = maths.score_kv_sum(cartridge, probe, "none", "last5", "mask")
    distance = naive(model, cartridge, TEXTS[0], "mask")[0].T  # [layer, block]

    assert scores.shape == (7, 1, 6)
    assert not scores[:2].any()
    wanted = distance[2:].sum(0)
    close(scores.mean((0, 1)), wanted / wanted.mean())


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(leave_one_out)


PLANTED = {
    "the sign of the KL": ("log_ratio = log_q - log_p", "log_ratio = log_p - log_q"),
    "the KL the other way round": ("(log_p.exp() *", "(log_q.exp() * -"),
    "KL after the first token": ("kl[:, -1], kl.mean", "kl[:, 0], kl.mean"),
    "KL of the last token twice": ("kl[:, -1], kl.mean(-1)", "kl[:, -1], kl[:, -1]"),
    "the readouts swapped": ('if readout == "last"', 'if readout == "all"'),
    "KL averaged over the vocabulary": ("- log_ratio)).sum(-1)", "- log_ratio)).mean(-1)"),
    "L1 for L2": ("(full - left_out).norm(dim=-1)", "(full - left_out).abs().sum(-1)"),
    "mean square for norm": (
        "(full - left_out).norm(dim=-1)",
        "(full - left_out).square().mean(-1)",
    ),
    "difference of norms": (
        "(full - left_out).norm(dim=-1)",
        "(full.norm(dim=-1) - left_out.norm(dim=-1)).abs()",
    ),
    "only the last probe token": ("distance.mean(-1)", "distance[..., -1]"),
    "a sum over probe tokens": ("distance.mean(-1)", "distance.sum(-1)"),
    "divided by the left-out state": ("distance / full.norm", "distance / left_out.norm"),
    "relative and plain swapped": (
        "[distance.mean(-1), relative.mean(-1), of_tokens]",
        "[relative.mean(-1), distance.mean(-1), of_tokens]",
    ),
    "one block alone visible": (
        "list(blocks)] = False",
        ":] = False; visible[range(1, 1 + len(blocks)), list(blocks)] = True",
    ),
    "the neighbour left out": ("list(blocks)] = False", "[b - 1 for b in blocks]] = False"),
    "nothing left out": ("list(blocks)] = False", "list(blocks)] = True"),
    "removal ignored": ("removal=removal", 'removal="mask"'),
    "a sweep shared by both removals": ("{SWEEP}/{removal}/", "{SWEEP}/"),
    "a sweep shared by all texts": ("/{tokens}", ""),
    "texts not divided by their mean": ("total += scores / mean", "total += scores"),
    "each layer divided by its own mean": (
        "total += scores / mean",
        "total += scores / scores.mean((1, 2), keepdim=True)",
    ),
    "a sum over texts": ("return total / len(per_text)", "return total"),
    "the first five layers": ("per_layer[:-LAST_LAYERS]", "per_layer[LAST_LAYERS:]"),
    "the last four layers": ("LAST_LAYERS = 5", "LAST_LAYERS = 4"),
    "norm ignored": ('if norm == "relative"', 'if norm == "Relative"'),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], leave_one_out))


class ZeroKeys(FakeProbe):
    """Absence done wrong: an invisible block's keys and values are zero, and take mass."""

    def _row(self, token_ids, visible, removal):
        if removal == "reprefill":
            return super()._row(token_ids, visible, removal)
        shown = visible.repeat_interleave(self.cartridge.layout.block_size)[:, None]
        past = self.cartridge.keys() * shown, self.cartridge.values() * shown
        first = self.cartridge.layout.num_tokens
        return self.model.run(token_ids, range(first, first + len(token_ids)), past)


class Renumbered(FakeProbe):
    """Positions done wrong: the probe moves up when a block is left out."""

    def _row(self, token_ids, visible, removal):
        layout = self.cartridge.layout
        seen = layout.tokens_of(visible.nonzero().flatten().tolist())
        positions = range(len(seen), len(seen) + len(token_ids))
        past = self.cartridge.keys()[:, :, seen], self.cartridge.values()[:, :, seen]
        return self.model.run(token_ids, positions, past)


@pytest.mark.parametrize("wrong_probe", [ZeroKeys, Renumbered])
def test_a_probe_that_removes_blocks_wrongly_is_noticed(wrong_probe, monkeypatch):
    monkeypatch.setitem(globals(), "FakeProbe", wrong_probe)

    with pytest.raises(AssertionError):
        check_both_removals_match_the_naive_loop(leave_one_out)
