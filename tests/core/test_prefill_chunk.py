"""What a chunk of a prefill can tell beside its block masses."""

import pytest
import torch

from kri_core.probe import PrefillChunk
from kri_core.testing import causal_attention

BLOCK, TOKENS = 4, 14  # three blocks and a tail of 2


def chunk(logits, first_token=0):
    """Keys are unit vectors, so the queries are the logits."""
    weights = causal_attention(logits)[:, first_token:]
    mass = weights[..., :12].unflatten(-1, (3, BLOCK)).sum(-1)
    keys = torch.eye(TOKENS)[None]
    return PrefillChunk(0, first_token, logits[:, first_token:], keys, 1.0, mass)


@pytest.fixture
def logits():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(2, TOKENS, TOKENS, generator=draw)


def without(logits, count):
    """Block masses of attention whose first keys have logit −inf, 0 where nothing is left."""
    gone = torch.arange(TOKENS) < count
    weights = causal_attention(logits.masked_fill(gone, -torch.inf)).nan_to_num(0.0)
    return weights[..., :12].unflatten(-1, (3, BLOCK)).sum(-1)


@pytest.mark.parametrize("count", [0, 1, 4, 6, 12])
@pytest.mark.parametrize("first_token", [0, 5])
def test_a_sink_that_is_dropped_is_absent(logits, count, first_token):
    got = chunk(logits, first_token).without_sinks(count, BLOCK)

    torch.testing.assert_close(got, without(logits, count)[:, first_token:], rtol=0, atol=1e-6)


def test_what_a_heavy_sink_leaves_is_not_rounding_noise(logits):
    """Here sinks take 1 − 1e-9 of each row, which float32 cannot tell from 1."""
    heavy = logits.clone()
    heavy[..., :2] += 24
    got = chunk(heavy).without_sinks(2, BLOCK)

    torch.testing.assert_close(got[:, :12], without(logits, 2)[:, :12], rtol=0, atol=1e-5)


def test_the_chunk_is_left_as_it_was(logits):
    seen = chunk(logits)
    before = seen.block_mass.clone()
    seen.without_sinks(6, BLOCK)

    assert seen.block_mass.equal(before)
