"""What is refused, and that NaN is not taken for an answer."""

from functools import partial

import pytest
import torch
from kri_plugin_eigen import centrality, eigen, graph, pagerank
from kri_plugin_eigen.block_graph_params import BlockGraphParams

from kri_core import ConfigError, Layout
from kri_core.testing import FakeModel, watched


def test_what_does_not_settle_is_an_error():
    """Two pairs apart, one tied a little closer than the other."""
    edges = torch.zeros(4, 4, dtype=torch.float64)
    edges[0, 1] = edges[1, 0] = 1.0
    edges[2, 3] = edges[3, 2] = 0.999
    wanted = "eigen: 1000 steps of power iteration did not settle; raise epsilon=1e-09"
    with pytest.raises(ConfigError, match=wanted):
        centrality.perron(edges, 1e-9)
    assert centrality.perron(edges, 0.05).argmax() == 0


@pytest.mark.parametrize("heads", graph.WEIGHTS)
def test_float32_ranks_as_float64(heads):
    rankings = []
    finish = partial(centrality.eigen, lift_cap=50.0, epsilon=0.05)
    for dtype in (torch.float32, torch.float64):
        model = FakeModel.random(dtype=dtype)
        doc = model.layout(4, 62)
        trace = model.run([7 * t % 64 for t in range(62)], range(62))
        scores = watched(graph.BlockGraph(doc, heads, 3, finish), trace.weights, doc)
        rankings.append(scores.flatten().argsort(stable=True).tolist())

    assert rankings[0] == rankings[1]


def test_nan_stays_nan():
    """The core refuses it and names the plugin."""
    edges = torch.full((3, 3), torch.nan, dtype=torch.float64)

    assert centrality.eigen(edges, 50.0, 0.05).isnan().any()


def test_either_the_first_tokens_or_the_first_block_are_sinks():
    layout = Layout(1, 1, 8, block_size=16, num_tokens=64)

    assert BlockGraphParams().sinks(layout) == 4
    assert BlockGraphParams(n_sink=7).sinks(layout) == 7
    assert BlockGraphParams(sink="block", n_sink=7).sinks(layout) == 16


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: eigen.Params(epsilon=0.0), "'epsilon' must be > 0"),
        (lambda: eigen.Params(epsilon=1.0), "'epsilon' must be < 1"),
        (lambda: eigen.Params(lift_cap=0.0), "'lift_cap' must be > 0"),
        (lambda: eigen.Params(n_sink=-1), "'n_sink' must be >= 0"),
        (lambda: pagerank.Params(damping=0.9), "'damping' must be <= 0.85"),
    ],
)
def test_a_value_out_of_range_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
