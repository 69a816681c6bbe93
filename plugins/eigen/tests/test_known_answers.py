"""What the maths must give on graphs written by hand, and that a wrong formula is noticed.

Every check takes the two modules under test, so that it also runs on the planted bugs at the end.
"""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from kri_plugin_eigen import centrality, graph

from kri_core import Layout
from kri_core.testing import causal_attention, is_noticed, plant_bug, watched

MATHS = {"graph": graph, "centrality": centrality}


def layout(num_blocks=32, block_size=8, tail=0, layers=1):
    tokens = num_blocks * block_size + tail
    return Layout(layers, 1, head_dim=8, block_size=block_size, num_tokens=tokens)


def attention(doc, hub=None, sink=0.0, local=0.0):
    """F4 without arguments; F6 with a hub; F7 with four sinks and eight favoured neighbours."""
    logits = torch.zeros(1, 1, doc.num_tokens, doc.num_tokens, dtype=torch.float64)
    token = torch.arange(doc.num_tokens)
    if hub is not None:
        logits[..., doc.tokens_of([hub])] += 2
    logits[..., :4] += sink
    return causal_attention(logits + local * (token[:, None] - token < 8))


def block_graph(weights, doc):
    """W[i, j]: mean over the queries of block i of their mass on block j, [..., block, block]."""
    blocks, size = doc.num_blocks, doc.block_size
    whole = weights[..., : blocks * size, : blocks * size]
    return whole.unflatten(-1, (blocks, size)).sum(-1).unflatten(-2, (blocks, size)).mean(-2)


def score(maths, weights, doc, n_sink=4, heads="retrieval", finish=None):
    finish = finish or partial(maths.centrality.eigen, lift_cap=50.0, epsilon=0.05)
    scores = watched(maths.graph.BlockGraph(doc, heads, n_sink, finish), weights, doc)
    assert scores.shape == (1, 1, doc.num_blocks)
    return scores[0, 0]


def close(got, wanted, tolerance=1e-6):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=tolerance)


def lower(count):
    """Lift 1 on every edge to an earlier block: what uniform attention has."""
    return torch.ones(count, count, dtype=torch.float64).tril(-1)


def star(count=5, hub=2, lift=6.0):
    """Uniform attention, but a hub's edges count several times."""
    edges = lower(count)
    edges[:, hub] *= lift
    edges[hub] *= lift
    return edges


def check_uniform_attention_leaves_no_block_ahead(maths):
    """ALGORITHMS 7.5, 1."""
    for doc in (layout(), layout(16, 8, tail=3), layout(6, 4, tail=2), layout(2, 3), layout(1, 4)):
        for n_sink in (0, doc.block_size - 1):
            x = score(maths, attention(doc), doc, n_sink)
            close(x * doc.num_blocks, torch.ones(doc.num_blocks))


def check_a_hub_is_first_wherever_it_lies(maths):
    """ALGORITHMS 7.5, 3: raw column mass does not find a late one."""
    doc = layout()
    for hub in (3, 16, 28):
        assert score(maths, attention(doc, hub), doc).argmax() == hub
        crowded = attention(doc, hub, sink=6.0, local=3.0)
        assert score(maths, crowded, doc).argmax() == hub
        kept = score(maths, crowded, doc, n_sink=0).argsort(descending=True)
        assert kept[0] == 0
        assert kept[1] == 31
    raw = block_graph(attention(doc, 28), doc)[0, 0].sum(0)
    assert (raw > raw[28]).sum() > 10


def check_a_dropped_sink_is_as_if_it_had_never_been(maths):
    """Its own queries do not count either."""
    doc = layout(6, 8, tail=2)
    for n_sink in (2, 4, 8, 11):
        weights = random_attention(doc)
        absent = torch.arange(doc.num_tokens) < n_sink
        clean = weights.masked_fill(absent, 0)
        clean = (clean / clean.sum(-1, keepdim=True)).nan_to_num(0.0)
        sums = (
            clean[0, 0, : 6 * 8].unflatten(0, (6, 8)).sum(1)[:, : 6 * 8].unflatten(1, (6, 8)).sum(2)
        )
        queries = torch.tensor([max(0, 8 - max(0, n_sink - 8 * block)) for block in range(6)])
        wanted = sums / queries.clamp(min=1)[:, None]
        close(pooled_by(maths, weights, doc, n_sink), wanted, 1e-5)
        fair = maths.graph.fair_graph(doc, n_sink)
        close(pooled_by(maths, attention(doc), doc, n_sink), fair, 1e-5)
    assert score(maths, random_attention(doc), doc, n_sink=48).unique().numel() == 1


def pooled_by(maths, weights, doc, n_sink):
    """The pooled graph, out of its lifts and the diagonal that lifts leave out."""
    seen = {}

    def keep(layers, fair, _pooling):
        seen["graph"] = layers[0][0]
        return layers[0][0].double()

    right, maths.graph.pool_heads = maths.graph.pool_heads, keep
    try:
        score(maths, weights, doc, n_sink, finish=lambda lifts: lifts.sum(0))
    finally:
        maths.graph.pool_heads = right
    return seen["graph"]


def random_attention(doc, q_heads=1, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shape = (doc.num_layers, q_heads, doc.num_tokens, doc.num_tokens)
    return causal_attention(2 * torch.randn(shape, generator=draw, dtype=torch.float64))


def check_fair_shares_by_hand(maths):
    """Two blocks of 2: queries 2 and 3 owe block 0 2/3 and 2/4 of their mass."""
    wanted = torch.tensor([[1, 0], [(2 / 3 + 2 / 4) / 2, (1 / 3 + 2 / 4) / 2]])
    close(maths.graph.fair_graph(layout(2, 2, tail=1), 0), wanted, 1e-7)
    without_one = torch.tensor([[1, 0], [(1 / 2 + 1 / 3) / 2, (1 / 2 + 2 / 3) / 2]])
    close(maths.graph.fair_graph(layout(2, 2, tail=1), 1), without_one, 1e-7)
    close(maths.graph.fair_graph(layout(2, 2), 2), torch.tensor([[0.0, 0], [0, 1]]), 1e-7)


def check_lifts_by_hand(maths):
    fair = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0.4, 0.3, 0.3]])
    own = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0.4, 0.6, 0.0]])
    wanted = torch.tensor([[0, 0, 0], [0.5, 0, 0], [1, 2, 0]])
    close(maths.graph.lift(own, fair), wanted)
    fair[:, 0] = 0
    assert (maths.graph.lift(own, fair)[:, 0] == 0).all()


def check_every_layer_and_head_is_in_the_graph(maths):
    doc = layout(6, 4, tail=2, layers=3)
    weights = random_attention(doc, q_heads=2)
    wanted = maths.graph.lift(
        block_graph(weights, doc).mean((0, 1)), maths.graph.fair_graph(doc, 0)
    )
    for part in (0, 1):
        got = score(maths, weights, doc, 0, "uniform", lambda lifts, part=part: lifts.sum(part))
        close(got, wanted.sum(part), 1e-5)


def two_heads(doc):
    """A head that looks at block 2, and one that is uniform but sees only blocks nearby."""
    token = torch.arange(doc.num_tokens)
    near = token[:, None] // doc.block_size - token // doc.block_size <= 4
    hub = attention(doc, hub=2)
    local = causal_attention(torch.zeros(1, 1, *near.shape).double().masked_fill(~near, -50))
    return hub[0, 0], local[0, 0], attention(doc)[0, 0]


def pooled(maths, heads, doc, pooling):
    graphs = [block_graph(head[None], doc) for head in heads]  # one layer each
    return maths.graph.pool_heads(graphs, maths.graph.fair_graph(doc, 0), pooling)


def check_head_weights(maths):
    """ALGORITHMS 7.3: what each pooling makes of a hub, a local and a uniform head."""
    doc = layout(12, 4)
    hub, local, flat = two_heads(doc)
    of = {
        name: block_graph(head, doc) for name, head in zip("hlf", (hub, local, flat), strict=True)
    }
    fair = maths.graph.fair_graph(doc, 0)

    close(pooled(maths, (hub, local), doc, "uniform"), (of["h"] + of["l"]) / 2)
    close(pooled(maths, (flat, local), doc, "retrieval"), of["f"])
    close(pooled(maths, (hub, flat), doc, "entropy"), of["h"])
    close(pooled(maths, (hub, flat), doc, "softmax_gain"), of["h"])
    for pooling in ("entropy", "softmax_gain"):
        close(pooled(maths, (flat, flat), doc, pooling), of["f"])

    far = torch.ones(12, 12).tril(-5).bool()
    lifted = ((of["h"] / fair)[far].mean(), torch.tensor(1.0))
    wanted = (lifted[0] * of["h"] + lifted[1] * of["f"]) / sum(lifted)
    close(pooled(maths, (hub, flat), doc, "retrieval"), wanted)

    affinity = (of["h"].tril(-1).sum(0) / fair.tril(-1).sum(0))[:-1]
    peak = affinity.max() / affinity.mean()
    assert affinity.argmax() == 2
    close(pooled(maths, (hub, flat), doc, "concentration"), (peak * of["h"] + of["f"]) / (peak + 1))

    shares = [each / each.sum() for each in (affinity, affinity_of(of["l"], fair))]
    bits = [math.log(11) + float((share * share.log()).sum()) for share in shares]
    wanted = (bits[0] * of["h"] + bits[1] * of["l"]) / sum(bits)
    close(pooled(maths, (hub, local), doc, "entropy"), wanted)

    gains = [
        float(torch.where(g > 0, g * (g / fair).log(), 0.0).nan_to_num(0.0).sum(-1).mean())
        for g in (of["h"], of["l"])
    ]
    wanted = (gains[0] * of["h"] + gains[1] * of["l"]) / sum(gains)
    close(pooled(maths, (hub, local), doc, "softmax_gain"), wanted)


def affinity_of(weights, fair):
    return (weights.tril(-1).sum(0) / fair.tril(-1).sum(0))[:-1]


def check_the_perron_vector(maths):
    """ALGORITHMS 7.5, 4: positive, sums to 1, an eigenvector, whatever the scale and the start."""
    edges = star()
    x = maths.centrality.eigen(edges, 50.0, 0.05)
    both = (edges + edges.T) / 2
    positive = 0.95 * both / both.sum(1).max() + 0.05 / 5
    values, vectors = torch.linalg.eigh(positive)
    assert (x > 0).all()
    assert float(x.sum()) == pytest.approx(1)
    assert (positive @ x - values[-1] * x).abs().sum() < 1e-6
    close(x, vectors[:, -1] / vectors[:, -1].sum())
    assert x.argmax() == 2
    close(maths.centrality.eigen(edges / 7, 50.0, 0.05), x)
    graph = maths.centrality.symmetric(edges)
    start = torch.tensor([9.0, 1, 1, 1, 1]).double()
    close(maths.centrality.perron(graph, 0.05, start), x)


def check_a_star_settles(maths):
    """It is bipartite: plain power iteration would swing to and fro."""
    edges = torch.zeros(3, 3, dtype=torch.float64)
    edges[0, 1:] = edges[1:, 0] = 0.5
    wanted = torch.tensor([2**0.5, 1, 1])
    close(maths.centrality.perron(edges, 1e-9), wanted / wanted.sum())


def check_relabelled_blocks_have_relabelled_scores(maths):
    """ALGORITHMS 7.5, 5: of the symmetric graph; before it, order is causal."""
    edges = star()
    order = torch.tensor([3, 0, 4, 1, 2])
    graph = maths.centrality.symmetric(edges)
    x = maths.centrality.perron(graph, 0.05)
    close(maths.centrality.perron(graph[order][:, order], 0.05), x[order])


def check_edges_are_capped(maths):
    edges = lower(6)
    edges[4, 1] = 1000.0
    at_50 = edges.clone()
    at_50[4, 1] = 50.0
    for measure in MEASURES(maths):
        close(measure(edges, 50.0), measure(at_50, 1e6), 1e-9)
        assert not torch.allclose(measure(edges, 50.0), measure(edges, 40.0), atol=1e-5)


def MEASURES(maths):  # noqa: N802 - a table that needs its modules
    return (
        partial(maths.centrality.eigen, epsilon=0.05),
        maths.centrality.katz,
        partial(maths.centrality.pagerank, damping=0.85),
    )


def check_katz_by_hand(maths):
    """Three blocks: α = 1/6, and the block before one has its paths and 1 / 6 more of them."""
    wanted = torch.tensor([(7 / 6) ** 2, 7 / 6, 1])
    close(maths.centrality.katz(lower(3), 50.0), wanted / wanted.sum())
    x = maths.centrality.katz(lower(16), 50.0)
    assert float(x.max() / x.min()) == pytest.approx(1.59, abs=0.01)  # ALGORITHMS 7.2


def check_pagerank_by_hand(maths):
    """Two blocks; x₁ = .075 + .425 x₀ and x₀ = .075 + .425 x₀ + .85 x₁."""
    first = 0.13875 / 0.21375
    close(maths.centrality.pagerank(lower(2), 50.0, 0.85), torch.tensor([first, 1 - first]))
    x = maths.centrality.pagerank(lower(128), 50.0, 0.85)
    assert float(x.sum()) == pytest.approx(1)
    assert float(x.max() / x.min()) == pytest.approx(65, abs=1)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(SimpleNamespace(**MATHS))


def test_the_raw_graph_is_degenerate():
    """ALGORITHMS 7.5, 2: why edges are lifted, their diagonal dropped and both ways joined."""
    doc = layout(8, 4)
    raw = block_graph(random_attention(doc), doc)[0, 0]
    values = torch.linalg.eigvals(raw).real

    close(raw.sum(1), torch.ones(8))
    close(values.sort().values, raw.diag().sort().values)
    walk = torch.full((8,), 1 / 8, dtype=torch.float64)
    for _ in range(3000):
        walk = walk @ raw
    close(walk, torch.eye(8)[0])  # the stationary vector: block 0 swallows everything
    assert not torch.linalg.matrix_power(raw.tril(-1), 8).any()


PLANTED = {
    "sinks kept": (
        "graph",
        "chunk.without_sinks(self.n_sink, size)",
        "chunk.without_sinks(0, size)",
    ),
    "the tail's rows in the last block": ("graph", "[:, :rows]", ""),
    "blocks asked about one token late": (
        "graph",
        "torch.arange(mass.shape[1])) // size",
        "torch.arange(1, 1 + mass.shape[1])).clamp(max=blocks * size - 1) // size",
    ),
    "a sum over a block's queries": ("graph", ".div_(queries[:, None])", ""),
    "sinks among the queries": ("graph", "(token >= n_sink).reshape", "(token >= 0).reshape"),
    "fair shares with the sinks": (
        "graph",
        "(token + 1 - n_sink).clamp(min=0).double()",
        "(token + 1).double()",
    ),
    "own keys with the sinks": ("graph", "token // size * size - n_sink", "token // size * size"),
    "no lift": ("graph", "(graph / fair.where(fair > 0, torch.inf)).tril(-1)", "graph.tril(-1)"),
    "the diagonal kept": ("graph", "torch.inf)).tril(-1)", "torch.inf)).tril()"),
    "edges upside down": (
        "graph",
        "(graph / fair.where(fair > 0, torch.inf))",
        "(fair / graph.clamp(min=1e-9))",
    ),
    "0/0 for a block of sinks": ("graph", "fair.where(fair > 0, torch.inf)", "fair"),
    "weights not normalised": ("graph", "weights = weights / weights.sum()\n", "\n"),
    "retrieval by near edges": ("graph", "(fair > 0).tril(-NEAR - 1)", "(fair > 0).tril(-1)"),
    "retrieval by mass": ("graph", "lift(heads, fair)[:, far]", "heads[:, far]"),
    "retrieval of five blocks": ("graph", "NEAR = 4", "NEAR = 5"),
    "affinities by mass": ("graph", "heads.tril(-1).sum(1) / exposed", "heads.tril(-1).sum(1)"),
    "affinities of queries": (
        "graph",
        "heads.tril(-1).sum(1) / exposed",
        "heads.tril(-1).sum(2) / exposed",
    ),
    "concentration: mean for peak": (
        "graph",
        "affinities.amax(-1) / affinities.mean(-1)",
        "affinities.mean(-1) / affinities.mean(-1)",
    ),
    "entropy, not what it lacks": (
        "graph",
        "(share * ratio.log()).sum(-1)",
        "-(share * ratio.log()).sum(-1)",
    ),
    "gain summed in the last row": (
        "graph",
        "_information(heads, fair).mean(-1)",
        "_information(heads, fair)[:, -1]",
    ),
    "retrieval and uniform swapped": (
        "graph",
        '"retrieval": _retrieval',
        '"retrieval": lambda heads, _fair: heads.new_ones(len(heads))',
    ),
    "not symmetric": ("centrality", "(edges + edges.mT) / 2", "edges"),
    "later blocks only": ("centrality", "(edges + edges.mT) / 2", "edges.mT"),
    "scaled by a mean row": ("centrality", "both.sum(1).max()", "both.sum(1).mean()"),
    "division by no edges": (
        "centrality",
        "both / largest if largest > 0 else both",
        "both / largest",
    ),
    "epsilon ignored": (
        "centrality",
        "(1 - epsilon) * graph + epsilon / count",
        "graph + 0 * epsilon / count",
    ),
    "epsilon not shared out": ("centrality", "+ epsilon / count", "+ epsilon"),
    "one step": ("centrality", ">= MOVED", ">= 10"),
    "whole steps": (
        "centrality",
        "(following / following.sum() + x) / 2",
        "following / sum(following)",
    ),
    "Euclidean length 1": (
        "centrality",
        "following / following.sum()",
        "following / following.norm()",
    ),
    "eigen: no cap": ("centrality", "symmetric(lifts.clamp(max=lift_cap))", "symmetric(lifts)"),
    "katz: paths from a block": (
        "centrality",
        "identity - edges.mT * (0.5",
        "identity - edges * (0.5",
    ),
    "katz: alpha doubled": ("centrality", "(0.5 / count)", "(1 / count)"),
    "katz: the sign": ("centrality", "identity - edges.mT * (", "identity + edges.mT * ("),
    "pagerank: from key to query": ("centrality", "damping * walk.mT", "damping * walk"),
    "pagerank: the first block leads nowhere": (
        "centrality",
        "edges / total, 1 / count)",
        "edges / total, 0.0)",
    ),
    "pagerank: restarts without 1 - d": ("centrality", "(1 - damping) / count", "1 / count"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    part, right, wrong = PLANTED[fault]
    mutant = plant_bug(right, wrong, MATHS[part])

    assert is_noticed(CHECKS.values(), SimpleNamespace(**MATHS | {part: mutant}))
