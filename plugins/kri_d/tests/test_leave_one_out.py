"""What leaving a block out must and must not change, on the fake model."""

import pytest
import torch
from attrs import evolve
from kri_plugin_d import kl, kv_sum
from kri_plugin_d.leave_one_out import average, leave_one_out

from kri_core import ProbeText
from kri_core.testing import FakeModel, FakeProbe

TEXT = ProbeText("b", (3, 8, 1))
DOCUMENT = tuple(range(20, 44))  # 24 tokens, 6 blocks of 4


@pytest.fixture
def model():
    return FakeModel.random()


@pytest.fixture
def cartridge(model):
    return model.cartridge(DOCUMENT)


def with_block(cartridge, block, keys):
    """The cartridge with all keys of one block replaced, [layer, kv_head, head_dim]."""
    kv = cartridge.kv.clone()
    kv[block, :, 0] = keys.unsqueeze(-2)
    return evolve(cartridge, kv=kv)


def score(cartridge, probe, **params):
    return kv_sum.kri_score_blocks(cartridge, probe, kv_sum.Params(**params))


def attended(model, cartridge, block, logit):
    """The cartridge with a block whose keys get this logit from every probe query, in every layer.

    A key of 8 dimensions can meet the 2 × 3 queries of a layer and KV head; they are read without
    the block, so the equations hold exactly where it gets no attention.
    """
    without = torch.ones(1, 6, dtype=torch.bool)
    without[0, block] = False
    read = FakeProbe(model, cartridge).forward(TEXT.token_ids, read=["queries"], visible=without)
    queries = read.queries[0].reshape(-1, 2, 6, 8)  # [layer, kv_head, q_head in group × token, d]
    target = torch.full((len(queries), 2, 6, 1), logit * 8**0.5)
    return with_block(cartridge, block, torch.linalg.lstsq(queries, target).solution[..., 0])


@pytest.mark.parametrize("block", [0, 2, 5])
def test_a_block_that_gets_no_attention_scores_zero(model, cartridge, block):
    """Logits of −2·10⁴; a zero key, which takes mass, is the control."""
    ignored = attended(model, cartridge, block, -2e4)
    zeroed = with_block(cartridge, block, torch.zeros(3, 2, 8))

    shifts = leave_one_out(ignored, FakeProbe(model, ignored), TEXT, "mask")
    others = [b for b in range(6) if b != block]
    assert shifts.distance[block].max() < 1e-6
    assert shifts.kl[block].abs() < 1e-6
    assert shifts.distance[others].min() > 1e-3
    zero_keys = leave_one_out(zeroed, FakeProbe(model, zeroed), TEXT, "mask")
    assert zero_keys.distance[block].min() > 1e-3


@pytest.mark.parametrize("block", range(6))
def test_a_block_that_draws_the_attention_is_first(block):
    """One layer, where removing it cannot change what later queries ask for."""
    model = FakeModel.random(num_layers=1)
    needle = attended(model, model.cartridge(DOCUMENT), block, 12.0)
    shifts = leave_one_out(needle, FakeProbe(model, needle), TEXT, "mask")

    assert shifts.distance[:, 0].argmax() == block
    assert shifts.kl.argmax() == block


def test_float32_ranks_as_float64():
    rankings = []
    for dtype in (torch.float32, torch.float64):
        model = FakeModel.random(dtype=dtype)
        document = model.cartridge(range(60), dtype=dtype)
        shifts = leave_one_out(document, FakeProbe(model, document), TEXT, "mask")
        rankings.append([*shifts.distance.mean(-1).argsort().tolist(), *shifts.kl.argsort()])

    assert rankings[0] == rankings[1]


def test_scores_move_with_the_blocks(model, cartridge):
    """Attention over a visible cache is a set operation: order of storage says nothing."""
    order = [3, 0, 5, 1, 4, 2]
    moved = evolve(cartridge, kv=cartridge.kv[order])
    plain = leave_one_out(cartridge, FakeProbe(model, cartridge), TEXT, "mask")
    permuted = leave_one_out(moved, FakeProbe(model, moved), TEXT, "mask")

    torch.testing.assert_close(permuted.distance, plain.distance[order], rtol=0, atol=1e-5)
    torch.testing.assert_close(permuted.kl, plain.kl[order], rtol=0, atol=1e-6)
    assert not torch.allclose(permuted.distance, plain.distance, atol=1e-3)


def test_mask_and_reprefill_agree_on_the_last_block_only(model, cartridge):
    probe = FakeProbe(model, cartridge)
    mask, reprefill = (
        leave_one_out(cartridge, probe, TEXT, mode) for mode in ("mask", "reprefill")
    )
    apart = (mask.distance - reprefill.distance).abs().amax(-1)  # [block]

    assert apart[-1] < 1e-5
    assert (mask.kl - reprefill.kl)[-1].abs() < 1e-6
    assert apart[:-1].max() > 1e-3


def test_a_tail_keeps_its_positions_and_is_never_left_out(model):
    """With tokens after the last block, reprefill encodes those anew and mask does not."""
    cartridge = model.cartridge((*DOCUMENT, 50, 51))
    probe = FakeProbe(model, cartridge)
    mask, reprefill = (
        leave_one_out(cartridge, probe, TEXT, mode) for mode in ("mask", "reprefill")
    )

    assert mask.distance.shape == (6, 3)
    assert (mask.distance - reprefill.distance)[-1].abs().max() > 1e-4


@pytest.mark.parametrize("removal", ["mask", "reprefill"])
def test_kl_is_not_negative(model, removal):
    for seed in range(5):
        cartridge = FakeModel.random(seed).cartridge(DOCUMENT)
        shifts = leave_one_out(cartridge, FakeProbe(model, cartridge), TEXT, removal)
        assert shifts.kl.min() >= -1e-7


def test_a_small_kl_is_not_lost_in_rounding():
    """Against float64; Σ p (log p − log q) in float32 is off by more than the KL itself."""
    from kri_plugin_d.leave_one_out import _kl

    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 5000, generator=draw) * 3
    pair = torch.cat([logits, logits + 1e-4 * torch.randn(1, 5000, generator=draw)])
    log_p, log_q = pair.double().log_softmax(-1)
    exact = float((log_p.exp() * (log_p - log_q)).sum())
    log_p, log_q = pair.log_softmax(-1)
    got = float(_kl(log_p, log_q))
    plain = float((log_p.exp() * (log_p - log_q)).sum())

    assert got == pytest.approx(exact, rel=1e-2)
    assert abs(plain - exact) > exact


@pytest.mark.parametrize("removal", ["mask", "reprefill"])
def test_the_batch_size_changes_nothing(model, cartridge, removal):
    alone, three, all_at_once = (
        score(cartridge, FakeProbe(model, cartridge, batch=batch), removal=removal)
        for batch in (1, 3, 16)
    )

    torch.testing.assert_close(three, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(all_at_once, alone, rtol=0, atol=1e-5)
    ranking = alone.mean((0, 1)).argsort().tolist()
    assert three.mean((0, 1)).argsort().tolist() == ranking
    assert all_at_once.mean((0, 1)).argsort().tolist() == ranking


def test_the_second_scorer_is_free(model, cartridge):
    probe = FakeProbe(model, cartridge, batch=4)
    score(cartridge, probe)
    rows = probe.rows
    score(cartridge, probe, norm="relative", layers="last5")
    kl.kri_score_blocks(cartridge, probe, kl.Params())

    assert rows == 2 * (6 + 2)  # two texts, six blocks and a full row per batch
    assert probe.rows == rows
    kl.kri_score_blocks(cartridge, probe, kl.Params(removal="reprefill"))
    assert probe.rows == 2 * rows


def test_a_resumed_bake_gives_the_same_scores(model, cartridge):
    """What was kept by the killed one is not run again."""
    killed = FakeProbe(model, cartridge)
    leave_one_out(cartridge, killed, killed.texts[0], "mask")
    resumed = FakeProbe(model, cartridge, kept=killed.kept)

    assert score(cartridge, resumed).equal(score(cartridge, FakeProbe(model, cartridge)))
    assert resumed.rows == killed.rows


def test_shapes(model, cartridge):
    probe = FakeProbe(model, cartridge)

    assert score(cartridge, probe).shape == (3, 1, 6)
    assert kl.kri_score_blocks(cartridge, probe, kl.Params()).shape == (1, 1, 6)


def test_a_text_that_nothing_changes_counts_as_zeros():
    silent, speaking = torch.zeros(1, 1, 3), torch.tensor([[[0.0, 1.0, 2.0]]])

    assert average([silent]).equal(silent)
    assert average([silent, speaking]).equal(torch.tensor([[[0.0, 0.5, 1.0]]]))
