"""What is refused, and that NaN is not taken for an answer."""

import pytest
import torch
from kri_plugin_eigen import centrality, eigen, pagerank
from kri_plugin_eigen.block_graph_params import BlockGraphParams

from kri_core import ConfigError, Layout


def test_a_walk_that_swings_to_and_fro_is_an_error():
    """A star is bipartite: without epsilon its two halves take turns."""
    edges = torch.zeros(3, 3, dtype=torch.float64)
    edges[0, 1:] = edges[1:, 0] = 0.5
    wanted = "eigen: 1000 steps of power iteration did not settle; raise epsilon=1e-09"
    with pytest.raises(ConfigError, match=wanted):
        centrality.perron(edges, 1e-9)
    assert centrality.perron(edges, 0.05).argmax() == 0


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
