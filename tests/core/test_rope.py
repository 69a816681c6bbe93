"""RoPE as complex numbers, by hand and against transformers' own rotation."""

import pytest
import torch

from kri_core.rope import Rope


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_quarter_turn_moves_one_pair(interleaved):
    """One band of a quarter turn per position, and a dimension that is not rotated."""
    rope = Rope(torch.tensor([torch.pi / 2]).double(), 1.0, interleaved)

    turned = rope.turn(torch.tensor([[1.0, 0, 7], [1, 0, 7], [0, 1, 7]]), torch.tensor([0, 1, 1]))
    expected = torch.tensor([[1.0, 0, 7], [0, 1, 7], [-1, 0, 7]])
    torch.testing.assert_close(turned, expected, atol=1e-6, rtol=0)


def test_pairs_are_halves_or_neighbours():
    vector = torch.tensor([1.0, 2, 3, 4])

    assert Rope(torch.ones(2).double(), 1.0, False).bands(vector).tolist() == [1 + 3j, 2 + 4j]
    assert Rope(torch.ones(2).double(), 1.0, True).bands(vector).tolist() == [1 + 2j, 3 + 4j]


def test_dimensions_that_are_not_rotated_pair_after_the_bands():
    """By halves whatever the style; of an odd number the last is alone."""
    vector = torch.arange(1.0, 8)
    for interleaved, band in ((False, 1 + 2j), (True, 1 + 2j)):
        rope = Rope(torch.ones(1).double(), 1.0, interleaved)
        assert rope.pairs(vector[:6]).tolist() == [band, 3 + 5j, 4 + 6j]
        assert rope.pairs(vector).tolist() == [band, 3 + 6j, 4 + 7j, 5]
    whole = Rope(torch.ones(3).double(), 1.0, False)
    assert whole.pairs(vector[:6]).equal(whole.bands(vector[:6]))


def test_turning_back_undoes_the_model_s_own_rotation(tiny_llama, tiny_cartridge):
    """Keys of the same token at two positions are equal once turned back (layer 0)."""
    from kri_core.testing import tiny

    rope = tiny_llama.anatomy.rotary.rope
    cartridge = tiny.tiny_cartridge(tiny_llama, token_ids=[9] * 32)
    keys = rope.turn(cartridge.keys()[0], -torch.arange(32))  # [kv_head, token, head_dim]

    torch.testing.assert_close(keys, keys[:, :1].expand_as(keys), atol=1e-5, rtol=0)
    assert not torch.allclose(cartridge.keys()[0][:, :1], cartridge.keys()[0][:, 1:2])
