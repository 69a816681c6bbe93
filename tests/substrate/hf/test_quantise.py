"""The quantised document against cases worked out by hand."""

import pytest
import torch

from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.hf.quantise import bits_within, kept_bytes, quantised, quantised_bytes
from kri_core.types import Layout

# 2 layers · 3 KV heads · 64: 8 blocks of 16 and a tail of 5; 768 numbers per token
LAYOUT = Layout(num_layers=2, num_kv_heads=3, head_dim=64, block_size=16, num_tokens=133)


def prefix_of(keys, values, blocks):
    return Prefix((keys,), (values,), tuple(range(blocks)), blocks, keys.shape[1] // blocks)


@pytest.fixture
def drawn():
    """48 tokens in 3 blocks, a whole and half a group of keys, and a tail of 5."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 2, 53, 8)
    return Prefix((keys,), (values,), (0, 1, 2), 3, 16)


def test_keys_are_rounded_per_channel_over_tokens():
    """From 0 to 3 in two bits the step is 1; from 0 to 6 it is 2; a constant is exact."""
    keys = torch.tensor([[[0.0, 0.0, 7.0], [1.2, 2.5, 7.0], [1.8, 3.5, 7.0], [3.0, 6.0, 7.0]]])

    (found,) = quantised(prefix_of(keys, keys, 1), 2).keys

    assert found.tolist() == [[[0, 0, 7], [1, 2, 7], [2, 4, 7], [3, 6, 7]]]


def test_values_are_rounded_per_token():
    """Along the channels: from −1 to 2 the step is 1, from 0 to 12 it is 4."""
    values = torch.tensor([[[-1.0, 0.4, 2.0], [0.0, 5.0, 12.0]]])

    (found,) = quantised(prefix_of(values, values, 1), 2).values

    assert found.tolist() == [[[-1, 0, 2], [0, 4, 12]]]


def test_each_32_tokens_have_a_key_scale_of_their_own():
    """A thousand in the second group does not coarsen the first."""
    keys = torch.zeros(1, 64, 1)
    keys[0, 1:32, 0] = 3.0
    keys[0, 5, 0], keys[0, 40, 0] = 1.0, 1000.0

    (found,) = quantised(prefix_of(keys, keys, 4), 2).keys

    assert found[0, :32].equal(keys[0, :32])


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_the_error_is_at_most_half_a_step(drawn, bits):
    """And what 16 bit take from scale and zero point: 2⁻¹¹ of the range and of the least."""
    before, after = drawn.keys[0][:, :32], quantised(drawn, bits).keys[0][:, :32]
    least, span = before.amin(1), before.amax(1) - before.amin(1)

    allowed = span / (2**bits - 1) / 2 + (span + least.abs()) * 2**-11
    assert ((before - after).abs().amax(1) <= allowed).all()


def test_more_bits_err_less(drawn):
    def error(bits):
        after = quantised(drawn, bits)
        pairs = (drawn.keys[0] - after.keys[0], drawn.values[0] - after.values[0])
        return sum(float(pair.square().sum()) for pair in pairs)

    assert error(8) < error(4) / 100 < error(3) / 100 < error(2) / 100


def test_the_tail_stays_as_it_is(drawn):
    after = quantised(drawn, 2)

    assert after.keys[0][:, 48:].equal(drawn.keys[0][:, 48:])
    assert after.values[0][:, 48:].equal(drawn.values[0][:, 48:])
    assert not after.keys[0][:, :48].equal(drawn.keys[0][:, :48])


def test_it_is_read_in_the_dtype_it_came_in(drawn):
    half = Prefix(
        tuple(drawn.keys[0][None].bfloat16()), tuple(drawn.values[0][None].bfloat16()), (0,), 1, 16
    )

    assert quantised(half, 4).keys[0].dtype is torch.bfloat16


def test_a_document_without_blocks_is_its_tail(drawn):
    tail = Prefix((drawn.keys[0][:, :5],), (drawn.values[0][:, :5],), (), 0, 16)

    assert quantised(tail, 4).values[0].equal(tail.values[0])


def test_bytes_are_codes_scales_zero_points_and_the_tail():
    """128 tokens · 768 · ½ byte; (4 groups · 64 + 128 tokens) · 6 heads · 2 numbers of 2 bytes."""
    assert kept_bytes(LAYOUT, 0) == 5 * 768 * 2 == 7_680
    assert kept_bytes(LAYOUT, 8) == 133 * 768 * 2 == 204_288
    assert quantised_bytes(LAYOUT, 4) == 49_152 + 9_216 + 7_680


@pytest.mark.parametrize(("blocks", "bits"), [(8, 8), (4, 4), (3, 4), (2, 3), (1, 2), (0, 2)])
def test_the_most_bits_that_fit_are_taken(blocks, bits):
    """Without the tail, a block is 24 576 bytes: 8 bits need 107 520, 4 58 368, 3 46 080, 2 33 792.

    Of one block or none even 2 are too many, and are what there is.
    """
    assert bits_within(LAYOUT, blocks) == bits
