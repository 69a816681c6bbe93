"""Keys that stand in for queries: against a loop, on keys whose answer is known, and planted bugs.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

from types import SimpleNamespace

import pytest
import torch
from attrs import evolve
from kri_plugin_eigen import synthetic
from kri_plugin_eigen.synthq import Params
from torch.nn.functional import cosine_similarity

from kri_core import Layout
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

UNTURNED = SimpleNamespace(turn=lambda vectors, _positions: vectors)  # a model without positions


def of_keys(keys, block_size=4):
    """A cartridge of one layer and head with these keys, [token, head_dim]."""
    layout = Layout(1, 1, keys.shape[1], block_size, len(keys))
    kv = torch.stack([keys, torch.zeros_like(keys)])[None, :, None]
    return cartridge_of(layout, kv, (0,) * len(keys))


def check_graphs_are_those_of_a_loop(maths):
    """Every key turned to the block's last token, then averaged; softmax of cosine / 0.1."""
    model = FakeModel.random()
    cartridge = model.cartridge([7 * t % 64 for t in range(26)])
    rope = FakeProbe(model, cartridge).rope
    for n_sink in (0, 3, 6):
        graphs = maths.stand_in_graphs(cartridge, rope, n_sink, 0.1)
        assert len(graphs) == 3
        for layer, graph in enumerate(graphs):
            wanted = torch.zeros(2, 6, 6)
            for head in range(2):
                keys = cartridge.keys()[layer, head]  # [token, head_dim]
                for block in range(6):
                    end = 4 * block + 3
                    turned = [
                        rope.turn(keys[t : t + 1], torch.tensor([end - t])) for t in range(26 - 2)
                    ]
                    asking = torch.cat(turned[4 * block : 4 * block + 4]).mean(0)
                    logits = cosine_similarity(asking[None], keys[n_sink : end + 1]) / 0.1
                    for token, share in enumerate(logits.softmax(0).tolist(), n_sink):
                        wanted[head, block, token // 4] += share
            torch.testing.assert_close(graph, wanted, rtol=0, atol=1e-5)


def check_equal_keys_leave_no_block_ahead(maths):
    """ALGORITHMS 7.5, 1: with RoPE too, for every block asks alike."""
    cartridge = of_keys(torch.tensor([[1.0, 2, -1, 3]]).expand(26, -1))
    rope = FakeProbe(FakeModel.random(), cartridge).rope
    for n_sink in (0, 3):
        x = maths.score(cartridge, rope, Params(n_sink=n_sink))
        torch.testing.assert_close(x * 6, torch.ones(1, 1, 6), rtol=0, atol=1e-5)


def check_fair_shares_by_hand(maths):
    """The last tokens of two blocks of 2 see 2 and 4 keys."""
    layout = Layout(1, 1, 4, block_size=2, num_tokens=5)
    assert maths.fair_at_ends(layout, 0).tolist() == [[1, 0], [0.5, 0.5]]
    without_one = torch.tensor([[1, 0], [1 / 3, 2 / 3]]).double()
    torch.testing.assert_close(maths.fair_at_ends(layout, 1), without_one)
    assert maths.fair_at_ends(layout, 2).tolist() == [[0, 0], [0, 1]]


def check_a_hub_is_first_wherever_it_lies(maths):
    """All blocks share a direction with the hub's keys, and have one of their own."""
    for hub in (1, 8, 14):
        own = torch.eye(17).repeat_interleave(4, 0)[: 16 * 4]  # [token, head_dim]
        shared = torch.eye(17)[16]
        keys = own + shared
        keys[4 * hub : 4 * hub + 4] = shared
        keys = keys * torch.linspace(1, 5, 64)[:, None]  # the length of a key says nothing
        x = maths.score(of_keys(keys), UNTURNED, Params(n_sink=0, heads="uniform"))
        assert x.flatten().argmax() == hub


def check_a_sharper_softmax_says_more(maths):
    keys = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    spread = [
        float(maths.score(of_keys(keys), UNTURNED, Params(temperature=t, n_sink=0)).std())
        for t in (1000.0, 1.0, 0.1)
    ]
    assert spread == sorted(spread)
    assert spread[0] < 1e-4


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(synthetic)


def test_a_trained_cartridge_is_scored_too():
    model = FakeModel.random()
    cartridge = model.cartridge([7 * t % 64 for t in range(26)])
    rope = FakeProbe(model, cartridge).rope
    trained = evolve(cartridge, trained=True)

    assert synthetic.score(trained, rope, Params()).equal(
        synthetic.score(cartridge, rope, Params())
    )


PLANTED = {
    "keys not normalised": ("normalize(keys, dim=-1).mT", "keys.mT"),
    "mean key not normalised": (
        "normalize(rope.turn(centre_means(cartridge, rope), to_end), dim=-1)",
        "rope.turn(centre_means(cartridge, rope), to_end)",
    ),
    "asked from the middle": ("(size - 1) / 2)", "0.0)"),
    "asked from the start": ("(size - 1) / 2)", "(1 - size) / 2)"),
    "temperature multiplies": ("(cosine / temperature)", "(cosine * temperature)"),
    "later blocks seen": ("token // size > torch", "token // size < 0 * torch"),
    "the own block unseen": ("token // size > torch", "token // size >= torch"),
    "sinks seen": ("| (token < n_sink)", "| (token < 0)"),
    "a mean over a block": ("(blocks, size)).sum(-1)", "(blocks, size)).mean(-1)"),
    "fair shares with the sinks": ("* size) >= n_sink)", "* size) >= 0)"),
    "fair shares of the first token": ("keys.cumsum(0)", "(keys.cumsum(0) - keys + 1)"),
    "no lift": ("lift(pooled, fair)", "pooled"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], synthetic))
