"""One pass for all, what is refused, and what half precision may change."""

import itertools

import pytest
import torch
from kri_plugin_a import attention_mass, prefill, snapkv
from kri_plugin_a.observation_window import ObservationWindow

from kri_core import ConfigError, Layout
from kri_core.testing import FakeModel, causal_attention, watched


def test_bfloat16_swaps_only_what_is_nearly_tied():
    """ALGORITHMS 2.5, 5: two blocks change places only if their scores are within 1e-2."""
    model = FakeModel.random()
    doc = model.layout(4, 64)
    trace = model.run([7 * t % 64 for t in range(64)], range(64))
    scores = []
    for dtype in (torch.float64, torch.bfloat16):
        queries, keys = (side.to(dtype).double() for side in (trace.queries, trace.keys))
        weights = causal_attention(queries @ keys.repeat_interleave(2, 1).mT / 8**0.5)
        scores.append(watched(attention_mass.over_prefill(doc, "lift", 0, 0), weights, doc))
    exact, rounded = scores

    assert not exact.equal(rounded)
    for one, other in itertools.combinations(range(16), 2):
        before = exact[..., one] - exact[..., other]
        after = rounded[..., one] - rounded[..., other]
        assert before[before * after < 0].abs().lt(1e-2).all()


@pytest.mark.parametrize(
    "watch",
    [
        attention_mass.last_token,
        attention_mass.last_token_of_all_heads,
        attention_mass.heavy_hitters,
        lambda doc: attention_mass.over_prefill(doc, "lift", 2, 0),
        lambda doc: ObservationWindow(doc, 6, 5),
    ],
)
def test_float32_ranks_as_float64(watch):
    rankings = []
    for dtype in (torch.float32, torch.float64):
        model = FakeModel.random(dtype=dtype)
        trace = model.run([7 * t % 64 for t in range(62)], range(62))
        scores = watched(watch(model.layout(4, 62)), trace.weights, model.layout(4, 62))
        rankings.append(scores.double().mean((0, 1)).argsort(stable=True).tolist())

    assert rankings[0] == rankings[1]


def test_only_the_tokens_it_needs_are_prefilled():
    doc = Layout(1, 1, 8, block_size=16, num_tokens=200)

    assert attention_mass.last_token(doc).first_token == 199
    assert attention_mass.last_token_of_all_heads(doc).first_token == 199
    assert attention_mass.heavy_hitters(doc).first_token == 0
    assert attention_mass.over_prefill(doc, "lift", 0, 0).first_token == 0
    assert attention_mass.over_prefill(doc, "lift", 4, 0).first_token == 4
    assert attention_mass.over_prefill(doc, "lift", 4, 64).first_token == 136
    assert attention_mass.over_prefill(doc, "lift", 0, 999).first_token == 0
    assert ObservationWindow(doc, 64, 5).first_token == 136
    assert ObservationWindow(doc, 999, 5).first_token == 0


def test_sinks_that_are_all_there_is_are_refused():
    doc = Layout(1, 1, 8, block_size=4, num_tokens=11)
    wanted = "n_sink=8 drops every token of the document's 2 blocks of 4; make it smaller or write"
    with pytest.raises(ConfigError, match=wanted):
        attention_mass.over_prefill(doc, "lift", 8, 0)


def test_an_even_kernel_is_refused():
    with pytest.raises(ConfigError, match="'snapkv': kernel must be odd, to have a middle; got 4"):
        snapkv.Params(kernel=4)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="'window' must be >= 0: -1"):
        prefill.Params(window=-1)
    with pytest.raises(ValueError, match="'window' must be >= 1: 0"):
        snapkv.Params(window=0)
