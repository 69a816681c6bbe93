"""What the loss is of, and what the scorers share."""

import pytest
import torch
from attrs import evolve
from kri_plugin_g import first_order, gate, gradient, targets

from kri_core import ConfigError, ProbeText
from kri_core.testing import FakeModel, FakeProbe, is_noticed, plant_bug

TEXTS = (ProbeText("a", (5, 9, 2, 7, 11)), ProbeText("b", (3, 8, 1)))
DOCUMENT = tuple(range(20, 46))  # 26 tokens: six blocks of 4 and a tail of 2


@pytest.fixture
def model():
    return FakeModel.random()


@pytest.fixture
def cartridge(model):
    return model.cartridge(DOCUMENT)


@pytest.fixture
def probe(model, cartridge):
    return FakeProbe(model, cartridge, TEXTS)


def greedy(model, text, count):
    """The likeliest tokens after document and text in one run: no cartridge, no probe."""
    tokens = [*DOCUMENT, *text.token_ids]
    for _ in range(count):
        logits = model.run(tokens, range(len(tokens))).logits[-1].tolist()
        tokens.append(logits.index(max(logits)))
    return tokens[-count:]


def check_a_continuation_is_what_the_model_says_next(module):
    model = FakeModel.random()
    probe = FakeProbe(model, model.cartridge(DOCUMENT), TEXTS)
    for text, (ids, wanted) in zip(TEXTS, module.examples(probe, "continuation"), strict=True):
        said = greedy(model, text, 16)
        assert list(wanted) == said
        assert list(ids) == [*text.token_ids, *said[:-1]]


def check_a_text_is_its_own_target_one_token_later(module):
    model = FakeModel.random()
    probe = FakeProbe(model, model.cartridge(DOCUMENT), TEXTS)
    assert module.examples(probe, "text") == [
        ((5, 9, 2, 7), (9, 2, 7, 11)),
        ((3, 8), (8, 1)),
    ]


CHECKS = (
    check_a_continuation_is_what_the_model_says_next,
    check_a_text_is_its_own_target_one_token_later,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_targets_are_known(check):
    check(targets)


PLANTED = {
    "the text foretells itself": ("text.token_ids[1:]", "text.token_ids[:-1]"),
    "the last target is read, too": ("*tokens[:-1])", "*tokens)"),
    "the unlikeliest tokens": ("argmax()", "argmin()"),
    "what was said is not read": ("(*text.token_ids, *said), read", "text.token_ids, read"),
    "one token too few": ("range(CONTINUATION_TOKENS)", "range(CONTINUATION_TOKENS - 1)"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS, plant_bug(*PLANTED[fault], targets))


def test_the_target_changes_the_scores(cartridge, probe):
    scores = [
        scorer.kri_score_blocks(cartridge, probe, scorer.Params(targets=of))
        for scorer in (gradient, gate)
        for of in ("continuation", "text")
    ]

    assert not torch.allclose(scores[0], scores[1], atol=1e-2)
    assert not torch.allclose(scores[2], scores[3], atol=1e-2)


def test_a_text_of_one_token_has_no_next_one(model, cartridge):
    probe = FakeProbe(model, cartridge, (ProbeText("So", (4,)),))
    with pytest.raises(ConfigError, match=r"'So' has 1 token, so no next tokens .*=continuation"):
        gate.kri_score_blocks(cartridge, probe, gate.Params(targets="text"))
    assert gate.kri_score_blocks(cartridge, probe, gate.Params()).isfinite().all()


def test_the_second_scorer_runs_nothing(cartridge, probe):
    gradient.kri_score_blocks(cartridge, probe, gradient.Params())
    rows = probe.rows
    gate.kri_score_blocks(cartridge, probe, gate.Params(sign="absolute"))
    gradient.kri_score_blocks(cartridge, probe, gradient.Params(reduce="sum_of_norms"))

    assert rows == 2 * (16 + 2)  # two texts: continuation, one pass forward and back, one reading
    assert probe.rows == rows
    gate.kri_score_blocks(cartridge, probe, gate.Params(targets="text"))
    assert probe.rows == rows + 2 * 2


def test_a_resumed_bake_gives_the_same_scores(model, cartridge, probe):
    first = gate.kri_score_blocks(cartridge, probe, gate.Params())
    resumed = FakeProbe(model, cartridge, TEXTS, kept=probe.kept)

    assert gate.kri_score_blocks(cartridge, resumed, gate.Params()).equal(first)
    assert resumed.rows == 0


@pytest.mark.parametrize("scorer", [gradient, gate])
def test_scores_move_with_the_blocks(model, cartridge, probe, scorer):
    """Attention over a visible cache is a set operation: order of storage says nothing."""
    order = [3, 0, 5, 1, 4, 2]
    moved = evolve(cartridge, kv=cartridge.kv[order])
    plain = scorer.kri_score_blocks(cartridge, probe, scorer.Params())
    permuted = scorer.kri_score_blocks(moved, FakeProbe(model, moved, TEXTS), scorer.Params())

    assert plain.shape == (3, 2, 6)
    torch.testing.assert_close(permuted, plain[..., order], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(permuted, plain, atol=1e-1)


@pytest.mark.parametrize("scorer", [gradient, gate])
def test_float32_ranks_as_float64(scorer):
    rankings = []
    for dtype in (torch.float32, torch.float64):
        exact = FakeModel.random(dtype=dtype)
        document = exact.cartridge(range(60), dtype=dtype)
        scores = scorer.kri_score_blocks(document, FakeProbe(exact, document), scorer.Params())
        rankings.append(scores.mean((0, 1)).argsort().tolist())

    assert rankings[0] == rankings[1]


def test_steps_of_one_block_give_the_same(cartridge, probe, monkeypatch):
    whole = first_order.measure(cartridge, probe, (3, 8, 1), (6, 4))
    monkeypatch.setattr(first_order, "STEP_VALUES", 1)

    torch.testing.assert_close(first_order.measure(cartridge, probe, (3, 8, 1), (6, 4)), whole)
