"""Cartridge and Layout: valid from birth, and of the size they say."""

from __future__ import annotations

import attrs
import pytest
import torch

from kri_core.errors import ArtifactError


def test_blocks_and_tail_hold_each_token_where_it_belongs(make_cartridge):
    """Eleven tokens in blocks of four: two blocks and a tail of three."""
    cartridge = make_cartridge(num_tokens=11, block_size=4)

    assert cartridge.kv.shape == (2, 2, 2, 2, 4, 8)
    assert cartridge.tail.shape == (2, 2, 2, 3, 8)
    draw = torch.randn((2, 2, 2, 11, 8), generator=torch.Generator().manual_seed(0))
    assert torch.equal(cartridge.keys(), draw[:, 0, :, :8])
    assert torch.equal(cartridge.values([1]), draw[:, 1, :, 4:8])
    assert torch.equal(cartridge.tail, draw[:, :, :, 8:])


def test_blocks_come_in_the_order_asked_for_and_none_is_fine(make_cartridge):
    cartridge = make_cartridge(num_tokens=12, block_size=4)

    expected = torch.cat([cartridge.keys()[:, :, 8:], cartridge.keys()[:, :, :4]], 2)
    assert torch.equal(cartridge.keys([2, 0]), expected)
    assert cartridge.values([]).shape == (2, 2, 0, 8)
    with pytest.raises(IndexError):
        cartridge.keys([3])


def test_shorter_than_one_block_is_all_tail(make_cartridge):
    cartridge = make_cartridge(num_tokens=3, block_size=4)

    assert cartridge.layout.num_blocks == 0
    assert cartridge.kv.shape == (0, 2, 2, 2, 4, 8)
    assert cartridge.tail.shape == (2, 2, 2, 3, 8)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"kv": torch.zeros(2, 2, 2, 2, 8, 4)},
            (
                r"Cartridge.kv must be \[block, layer, 2, kv_head, token, head_dim\], here "
                r"\[2, 2, 2, 2, 4, 8\]; got shape \[2, 2, 2, 2, 8, 4\]"
            ),
        ),
        (
            {"tail": torch.zeros(2, 2, 2, 2, 8)},
            (
                r"Cartridge.tail must be \[layer, 2, kv_head, token, head_dim\], here "
                r"\[2, 2, 2, 3, 8\]; got shape \[2, 2, 2, 2, 8\]"
            ),
        ),
        (
            {"tail": torch.zeros(2, 2, 2, 3, 8, dtype=torch.float16)},
            "Cartridge.kv and .tail must have one dtype; got torch.float32 and torch.float16",
        ),
        (
            {"token_ids": (1, 2)},
            "Cartridge.token_ids must be one per token or none at all; got 2 for 11 tokens",
        ),
    ],
)
def test_parts_that_do_not_fit_the_layout_are_refused(make_cartridge, changed, line):
    cartridge = make_cartridge()

    with pytest.raises(ArtifactError, match=line):
        attrs.evolve(cartridge, **changed)


@pytest.mark.parametrize("kv_heads", [1, 2, 8], ids=["multi-query", "grouped", "multi-head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_byte_counts_are_those_of_the_tensors(make_cartridge, kv_heads, dtype):
    """Two layers, keys and values, heads of 8: 32 numbers a token and KV head."""
    cartridge = make_cartridge(num_tokens=11, block_size=4, kv_heads=kv_heads, dtype=dtype)
    per_token = 32 * kv_heads * (4 if dtype == torch.float32 else 2)

    assert cartridge.num_bytes == 11 * per_token == cartridge.kv.nbytes + cartridge.tail.nbytes
