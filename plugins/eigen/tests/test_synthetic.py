"""Stand-ins for queries: against a loop, on keys whose answer is known, and planted bugs.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import math
import re

import pytest
import torch
from attrs import evolve
from kri_plugin_eigen import synthetic
from kri_plugin_eigen.graph import WEIGHTS
from kri_plugin_eigen.synthq import Params
from torch.nn.functional import cosine_similarity

from kri_core import Calibration, ConfigError, Layout
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

PLAIN = FakeProbe(FakeModel.random(), FakeModel.random().cartridge((1,) * 4)).rope  # 4 bands
UNTURNED = evolve(PLAIN, inv_freq=torch.zeros(4, dtype=torch.float64))  # no positions


class AProbe:
    """A model's rope, and a calibration of the test's own."""

    def __init__(self, rope, centre=None):
        self.rope, self.calibration = rope, None
        if centre is not None:
            pairs = rope.pairs(centre).to(torch.complex64)
            self.calibration = Calibration(pairs, 2 * pairs.abs(), "fake", 64)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_keys(keys, block_size=4):
    """A cartridge of one layer and head with these keys, [token, head_dim]."""
    layout = Layout(1, 1, keys.shape[1], block_size, len(keys))
    kv = torch.stack([keys, torch.zeros_like(keys)])[None, :, None]
    return cartridge_of(layout, kv, (0,) * len(keys))


def check_graphs_of_centres_are_those_of_a_loop(maths):
    """Of 4 query heads over 2 KV heads: dot products at each block's last token, in every RoPE."""
    for dim, changes in ((8, {}), (8, {"interleaved": True}), (12, {}), (8, {"scaling": 1.5})):
        rope = evolve(PLAIN, **changes)
        layout = Layout(2, 2, dim, 4, 26)
        cartridge = cartridge_of(layout, draw(2, 2, 2, 26, dim), (0,) * 26)
        centre = draw(2, 4, dim, seed=1)
        # The last four of 12 dimensions are not rotated, and carry no scaling.
        scaled = torch.cat([rope.scaling * centre[..., :8], centre[..., 8:]], -1)
        for n_sink in (0, 3, 6):
            graphs = maths.centre_graphs(cartridge, rope, AProbe(rope, centre).calibration, n_sink)
            wanted = torch.zeros(2, 4, 6, 6)
            for layer, head, block in ((i, j, k) for i in (0, 1) for j in range(4)
                                       for k in range(6)):  # fmt: skip
                keys, end = cartridge.keys()[layer, head // 2], 4 * block + 3
                query = rope.turn(scaled[layer, head][None], torch.tensor([end]))[0]
                logits = keys[n_sink : end + 1] @ query / dim**0.5
                for token, share in enumerate(logits.softmax(0).tolist(), n_sink):
                    wanted[layer, head, block, token // 4] += share
            torch.testing.assert_close(torch.stack(graphs), wanted, rtol=0, atol=1e-5)
            assert graphs[0].dtype == torch.float32


def check_graphs_of_keys_are_those_of_a_loop(maths):
    """Every key turned to the block's last token, then averaged; softmax of cosine / 0.1."""
    model = FakeModel.random()
    cartridge = model.cartridge([7 * t % 64 for t in range(26)])
    rope = FakeProbe(model, cartridge).rope
    for n_sink in (0, 3, 6):
        graphs = maths.key_graphs(cartridge, rope, n_sink, 0.1)
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
    """ALGORITHMS 7.5, 1: turned ones too where keys ask, for every block then asks alike."""
    cartridge = of_keys(torch.tensor([[1.0, 2, -1, 3, 0, 1, 0, 2]]).expand(26, -1))
    flat = torch.ones(1, 1, 6)
    for n_sink in (0, 3):
        x = maths.score(cartridge, AProbe(PLAIN), Params(queries="keys", n_sink=n_sink))
        torch.testing.assert_close(x * 6, flat, rtol=0, atol=1e-5)
        asking = AProbe(UNTURNED, draw(1, 3, 8))
        x = maths.score(cartridge, asking, Params(n_sink=n_sink))
        torch.testing.assert_close(x * 6, flat, rtol=0, atol=1e-5)


def check_a_centre_of_0_leaves_no_block_ahead(maths):
    """The null of calibrated queries, whatever the keys: all logits are 0."""
    cartridge = of_keys(draw(26, 8))
    for heads in WEIGHTS:
        x = maths.score(
            cartridge, AProbe(PLAIN, torch.zeros(1, 2, 8)), Params(heads=heads, n_sink=3)
        )
        torch.testing.assert_close(x * 6, torch.ones(1, 1, 6), rtol=0, atol=1e-6)
    x = maths.score(cartridge, AProbe(PLAIN, draw(1, 2, 8)), Params(n_sink=3))
    assert (x * 6 - 1).abs().max() > 0.01  # the control


def check_fair_shares_by_hand(maths):
    """The last tokens of two blocks of 2 see 2 and 4 keys."""
    layout = Layout(1, 1, 4, block_size=2, num_tokens=5)
    assert maths.fair_at_ends(layout, 0).tolist() == [[1, 0], [0.5, 0.5]]
    without_one = torch.tensor([[1, 0], [1 / 3, 2 / 3]]).double()
    torch.testing.assert_close(maths.fair_at_ends(layout, 1), without_one)
    assert maths.fair_at_ends(layout, 2).tolist() == [[0, 0], [0, 1]]


def check_a_block_of_wanted_keys_is_first_wherever_it_lies(maths):
    """Its keys lie where the model usually looks: with slow bands from afar, too."""
    slow = evolve(PLAIN, inv_freq=torch.full((4,), 1e-3).double())
    usual = draw(1, 1, 8)
    for rope in (UNTURNED, slow):
        for hub in (1, 8, 13):  # only the last block asks the last but one: they would tie
            keys = 0.1 * draw(64, 8, seed=1)
            keys[4 * hub : 4 * hub + 4] = 2 * usual[0]
            cartridge = of_keys(rope.turn(keys, torch.arange(64)))
            for sign in (1, -1):
                x = maths.score(cartridge, AProbe(rope, sign * usual), Params(n_sink=0))
                assert (x.flatten().argmax() == hub) == (sign == 1)


def check_three_blocks_by_hand(maths):
    """Keys of one token whose logits are 0, log 2 and log 5; no positions, no sinks.

    W = [[1], [1/3, 2/3], [1/8, 2/8, 5/8]]; the lifts are its edges over 1/2 and 1/3 each.
    """
    keys = torch.zeros(3, 8)
    keys[:, 0] = torch.tensor([0, math.log(2), math.log(5)]) * 8**0.5
    asking = AProbe(UNTURNED, torch.eye(8)[None, :1])
    x = maths.score(of_keys(keys, block_size=1), asking, Params(n_sink=0, heads="uniform"))
    edges = torch.tensor([[0, 2 / 3, 3 / 8], [2 / 3, 0, 6 / 8], [3 / 8, 6 / 8, 0]]) / 2
    graph = 0.95 * edges / (17 / 12 / 2) + 0.05 / 3
    top = torch.linalg.eigh(graph).eigenvectors[:, -1]
    torch.testing.assert_close(x.flatten(), top / top.sum(), rtol=0, atol=1e-6)


def check_a_hub_of_keys_is_first_wherever_it_lies(maths):
    """All blocks share a direction with the hub's keys, and have one of their own."""
    for hub in (1, 8, 14):
        own = torch.eye(17).repeat_interleave(4, 0)[: 16 * 4]  # [token, head_dim]
        shared = torch.eye(17)[16]
        keys = own + shared
        keys[4 * hub : 4 * hub + 4] = shared
        keys = keys * torch.linspace(1, 5, 64)[:, None]  # the length of a key says nothing
        params = Params(queries="keys", n_sink=0, heads="uniform")
        x = maths.score(of_keys(keys), AProbe(UNTURNED), params)
        assert x.flatten().argmax() == hub


def check_a_sharper_softmax_says_more(maths):
    document = of_keys(draw(32, 8))
    every = [Params(queries="keys", temperature=t, n_sink=0) for t in (1000.0, 1.0, 0.1)]
    spread = [float(maths.score(document, AProbe(UNTURNED), params).std()) for params in every]
    assert spread == sorted(spread)
    assert spread[0] < 1e-4


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(synthetic)


@pytest.mark.parametrize("queries", ["calibrated", "keys"])
def test_a_trained_cartridge_is_scored_too(queries):
    model = FakeModel.random()
    cartridge = model.cartridge([7 * t % 64 for t in range(26)])
    probe, params = FakeProbe(model, cartridge), Params(queries=queries)
    trained = evolve(cartridge, trained=True)

    assert synthetic.score(trained, probe, params).equal(synthetic.score(cartridge, probe, params))


def test_without_a_calibration_it_says_how_to_go_on():
    """Keys do not step in unasked."""
    said = (
        "'eigen-synthq' needs the model's calibration, and there is none; run kri-core calibrate "
        "--model fake --text FILE, once, with any plain text, or let keys ask: "
        "eigen-synthq[queries=keys]"
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        synthetic.score(of_keys(draw(26, 8)), AProbe(PLAIN), Params())


def test_a_temperature_of_calibrated_queries_is_refused():
    with pytest.raises(ValueError, match="temperature is of queries=keys; calibrated ones have"):
        Params(temperature=0.2)
    assert Params(queries="keys", temperature=0.2).temperature == 0.2


@pytest.mark.parametrize("queries", ["calibrated", "keys"])
def test_float32_ranks_as_float64(queries):
    rankings = []
    for dtype in (torch.float32, torch.float64):
        model = FakeModel.random(dtype=dtype)
        cartridge = model.cartridge([7 * t % 64 for t in range(62)], dtype=dtype)
        x = synthetic.score(cartridge, FakeProbe(model, cartridge), Params(queries=queries))
        rankings.append(x.flatten().argsort(stable=True).tolist())

    assert rankings[0] == rankings[1]


PLANTED = {
    "centres: asked from the next block": (
        ") + 1) * layout.block_size - 1",
        ") + 1) * layout.block_size",
    ),
    "centres: asked from the block's start": (
        "(torch.arange(layout.num_blocks) + 1) * layout.block_size - 1",
        "torch.arange(layout.num_blocks) * layout.block_size",
    ),
    "centres: not turned": ("torch.polar(scaling.expand_as(angle), angle)", "scaling + 0 * angle"),
    "centres: turned back": ("expand_as(angle), angle)", "expand_as(angle), -angle)"),
    "centres: no conjugate": ("pairs.conj().mT", "pairs.mT"),
    "centres: the sign": ("(asking @ pairs", "(-asking @ pairs"),
    "centres: no scaling": ("rope.inv_freq, rope.scaling)", "rope.inv_freq, 1.0)"),
    "centres: what is not rotated is left out": ("(0, still), value=1.0", "(0, still), value=0.0"),
    "centres: no 1/√d": (" / math.sqrt(layout.head_dim)", ""),
    "centres: 1/d": ("math.sqrt(layout.head_dim)", "layout.head_dim"),
    "centres: of the first layer": ("calibration.centre[layer]", "calibration.centre[0]"),
    "centres: heads interleaved": (
        "asking.unflatten(0, (layout.num_kv_heads, -1))",
        "asking.unflatten(0, (-1, layout.num_kv_heads)).transpose(0, 1)",
    ),
    "centres: lengths for centres": ("calibration.centre[layer]", "calibration.length[layer]"),
    "keys where queries are usual": ('params.queries == "keys"', "params.queries"),
    "usual queries where keys ask": ('params.queries == "keys"', "not params.queries"),
    "values for keys": ("cartridge.kv[:, layer, 0]", "cartridge.kv[:, layer, 1]"),
    "keys not normalised": (
        "normalize(_keys(cartridge, layer), dim=-1)",
        "_keys(cartridge, layer)",
    ),
    "mean key not normalised": (
        "normalize(rope.turn(centre_means(cartridge, rope), to_end), dim=-1)",
        "rope.turn(centre_means(cartridge, rope), to_end)",
    ),
    "keys: asked from the middle": ("(layout.block_size - 1) / 2)", "0.0)"),
    "keys: asked from the start": ("(layout.block_size - 1) / 2)", "(1 - layout.block_size) / 2)"),
    "temperature multiplies": ("_sums(cosine / temp", "_sums(cosine * temp"),
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
