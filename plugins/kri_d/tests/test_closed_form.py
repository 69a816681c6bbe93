"""The closed form against leaving the block out, on models of one layer where both are exact.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import pytest
import torch
from attrs import evolve
from kri_plugin_d import closed_form, direct
from kri_plugin_d.leave_one_out import leave_one_out

from kri_core import ProbeText
from kri_core.testing import FakeModel, FakeProbe, is_noticed, plant_bug

TEXTS = (ProbeText("a", (5, 9, 2, 7, 11)), ProbeText("b", (3, 8, 1)))
DOCUMENT = tuple(range(20, 46))  # 26 tokens: six blocks of 4 and a tail of 2


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_layer(**changes):
    """A model of one layer, its cartridge and its probe, in float64."""
    model = evolve(FakeModel.random(num_layers=1, dtype=torch.float64), **changes)
    cartridge = model.cartridge(DOCUMENT, dtype=torch.float64)
    return model, cartridge, FakeProbe(model, cartridge, TEXTS)


def close(got, wanted, tolerance=1e-6):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=tolerance)


def check_a_shift_is_the_output_less_the_output_without_the_block(maths):
    """Random logits and values; two query heads to a KV head; the mass outside is on others."""
    queries, keys, values = draw(4, 3, 8), draw(2, 5, 4, 8, seed=1), draw(2, 5, 4, 8, seed=2)
    per_head = keys.flatten(1, 2).repeat_interleave(2, 0), values.flatten(1, 2)
    logits = queries @ per_head[0].mT  # [q_head, token, document token]
    weights, all_values = logits.softmax(-1), per_head[1].repeat_interleave(2, 0)
    masses, outputs = weights.unflatten(-1, (5, 4)).sum(-1), weights @ all_values
    shifts = maths.shifts(queries, keys, values, masses, outputs)
    for block in range(5):
        without = logits.clone()
        without[..., 4 * block : 4 * block + 4] = -torch.inf
        close(shifts[:, :, block], outputs - without.softmax(-1) @ all_values, 1e-10)


def check_one_kv_head_equals_the_masking_run(maths):
    """ALGORITHMS 1.6, test 2, with four query heads to the one KV head."""
    _, cartridge, probe = one_layer(
        key=draw(1, 1, 32, 8) * 0.3, value=draw(1, 1, 32, 8, seed=1) * 0.3
    )
    for text in TEXTS:
        masked = leave_one_out(cartridge, probe, text, "mask").distance  # [block, layer]
        close(maths.score_text(cartridge, probe, text), masked.T[:, None])


def check_each_kv_head_equals_the_masking_run_with_the_other_ones_muted(maths):
    model, cartridge, probe = one_layer()
    scores = maths.score_text(cartridge, probe, TEXTS[0])
    for head in (0, 1):
        alone = model.output.clone()
        alone[:, 2 - 2 * head : 4 - 2 * head] = 0  # query heads of the other KV head
        masked = leave_one_out(
            cartridge, FakeProbe(evolve(model, output=alone), cartridge), TEXTS[0], "mask"
        ).distance
        close(scores[:, head], masked.T)


def check_a_block_without_attention_scores_nothing(maths):
    """Mass a = 0, where o_b is 0/0: logits of −2·10⁴ underflow."""
    _, cartridge, probe = one_layer()
    queries = probe.forward(TEXTS[1].token_ids, read=["queries"]).queries[0]
    folded = queries.reshape(1, 2, 6, 8)  # a key of 8 dimensions meets 2 × 3 queries
    target = torch.full((1, 2, 6, 1), -2e4 * 8**0.5, dtype=torch.float64)
    kv = cartridge.kv.clone()
    kv[2, :, 0] = torch.linalg.lstsq(folded, target).solution.mT
    scores = maths.score_text(evolve(cartridge, kv=kv), FakeProbe(
        probe.model, evolve(cartridge, kv=kv)), TEXTS[1])  # fmt: skip

    assert not scores[..., 2].any()
    assert scores[..., [0, 1, 3, 4, 5]].min() > 1e-4


def check_all_the_attention_on_one_block_is_finite(maths):
    """Mass a = 1 in float32; the clamp makes the factor 10⁶, and o_b − o is then 0."""
    keys, values = draw(1, 2, 4, 8).float(), draw(1, 2, 4, 8, seed=1).float()
    masses = torch.tensor([1.0, 0.0]).reshape(1, 1, 2)
    queries = torch.zeros(1, 1, 8)
    output = values[:, 0].mean(1, keepdim=True)  # [q_head, token, head_dim]
    shifts = maths.shifts(queries, keys, values, masses, output)

    close(shifts[0, 0], torch.zeros(2, 8))
    half = maths.shifts(queries, keys, values, masses, output / 2)[0, 0, 0]
    close(half / output[0, 0] / 5e5, torch.ones(8), 0.1)


def check_duplicates_hide_each_other(maths):
    """ALGORITHMS 1.5: one of two twins moves the output by 2m - m/(1-m), both by 2m."""
    values = torch.tensor([1.0, 1, 0]).double().reshape(1, 3, 1, 1)
    nothing = torch.zeros(1, 3, 1, 1, dtype=torch.float64)
    for mass, ratio in ((0.1, 0.44), (0.3, 0.29), (0.45, 0.09)):
        masses = torch.tensor([[[mass, mass, 1 - 2 * mass]]]).double()
        output = torch.full((1, 1, 1), 2 * mass).double()
        twin, other, unique = maths.shifts(nothing[:, 0], nothing, values, masses, output).flatten()
        assert float(twin) == float(other) == pytest.approx(2 * mass - mass / (1 - mass))
        assert float(twin) / (2 * mass) == pytest.approx(ratio, abs=0.005)
        assert float(unique) == pytest.approx(2 * mass - 1)


def check_texts_are_averaged_after_division_by_their_own_mean(maths):
    _, cartridge, probe = one_layer()
    parts = [maths.score_text(cartridge, probe, text) for text in TEXTS]
    wanted = (parts[0] / parts[0].mean() + parts[1] / parts[1].mean()) / 2
    close(maths.score_direct(cartridge, probe), wanted)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(closed_form)


PLANTED = {
    "the sign of 1 - a": ("mass / (1 - mass)", "mass / (1 + mass)"),
    "1/(1 - a) forgotten": ("mass / (1 - mass) *", "mass *"),
    "a forgotten": ("mass / (1 - mass) *", "1 / (1 - mass) *"),
    "o_b alone": ("(part - outputs[:, :, None])", "part"),
    "the part's mean without its weights": (
        'torch.einsum("kgtbs,kbsd->kgtbd", logits.softmax(-1), values)',
        'torch.einsum("kgtbs,kbsd->kgtbd", logits * 0 + 1 / 4, values)',
    ),
    "no clamp": ("masses.clamp(max=MOST_MASS)", "masses"),
    "clamped too low": ("MOST_MASS = 1 - 1e-6", "MOST_MASS = 1 - 1e-4"),
    "the logits not scaled": (" * float(read.scaling[0, layer])", ""),
    "the output projection left out": ("of_group @ factors.mT[:, None]", "of_group"),
    "norms of heads added up": (
        "added.norm(dim=-1)",
        "of_group.unflatten(-1, (group, -1)).norm(dim=-1).sum(-1)",
    ),
    "only the last probe token": ("added.norm(dim=-1).mean(1)", "added.norm(dim=-1)[:, -1]"),
    "the mean before the norm": ("added.norm(dim=-1).mean(1)", "added.mean(1).norm(dim=-1)"),
    "query heads dealt out to KV heads in turn": (
        "queries.unflatten(0, (len(keys), -1))",
        "queries.unflatten(0, (-1, len(keys))).transpose(0, 1)",
    ),
    "texts added up": ("return average(", "return sum("),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], closed_form))


def test_one_forward_per_text(monkeypatch):
    model = FakeModel.random()
    cartridge = model.cartridge(DOCUMENT)
    probe = FakeProbe(model, cartridge, TEXTS)
    scores = direct.kri_score_blocks(cartridge, probe)

    assert scores.shape == (3, 2, 6)
    assert probe.rows == 2
    monkeypatch.setattr(closed_form, "STEP_VALUES", 1)  # one block at a time
    close(direct.kri_score_blocks(cartridge, probe), scores, 1e-5)


def test_no_tensor_holds_more_than_a_step(monkeypatch):
    """8 192 tokens: per-block outputs of a layer would be 3 · 4 · 2048 · 8 values."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        values = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            for each in made if isinstance(made, tuple | list) else [made]:
                if isinstance(each, torch.Tensor) and not func.is_view:
                    self.values = max(self.values, each.numel())
            return made

    model = FakeModel.random(num_layers=1)
    kv = draw(2048, 1, 2, 2, 4, 8).float()
    small = model.cartridge(range(4))
    layout = evolve(small.layout, num_tokens=8192)
    cartridge = evolve(small, layout=layout, kv=kv, token_ids=())
    probe = FakeProbe(model, cartridge, TEXTS[1:])
    masses = probe.forward(TEXTS[1].token_ids, read=closed_form.READ)
    monkeypatch.setattr(probe, "forward", lambda *_args, **_options: masses)
    monkeypatch.setattr(closed_form, "STEP_VALUES", 16_000)
    with Largest() as largest:
        closed_form.score_text(cartridge, probe, TEXTS[1])

    assert 0 < largest.values <= 3 * 4 * 2048  # the masses of all blocks, which the probe gave
