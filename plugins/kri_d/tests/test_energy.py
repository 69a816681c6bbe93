"""Energy from numbers worked out by hand."""

import pytest
import torch
from kri_plugin_d import energy

from kri_core import Layout
from kri_core.testing import FakeModel, cartridge_of, is_noticed, plant_bug


def by_hand(dtype=torch.float32):
    """One layer, two KV heads, two blocks of two tokens, head_dim 2."""
    keys = [[[3, 0], [0, 4], [1, 2], [-1, -2]], [[1, 0], [1, 0], [0, 1], [0, -2]]]
    values = [[[0, 0], [0, 0], [6, 0], [0, 8]], [[0, 3], [0, -3], [1, 1], [-1, -1]]]
    kv = torch.tensor([keys, values], dtype=dtype)[None]  # [layer, 2, kv_head, token, head_dim]
    return cartridge_of(Layout(1, 2, 2, 2, 4), kv, (0, 1, 2, 3))


def check_the_sums_lengths(scorer):
    """Opposite keys cancel: head 0's block 1 counts only its values, 10."""
    scores = scorer.kri_score_blocks(by_hand())

    assert scores.tolist() == [[[5.0, 10.0], [2.0, 1.0]]]


def test_the_plugin_gives_the_known_answer():
    check_the_sums_lengths(energy)


PLANTED = {
    "values left out": (".sum(2)", "[:, :, 0]"),
    "keys subtracted": (".sum(2)", ".diff(dim=2)[:, :, 0]"),
    "a mean over tokens": (".sum(-2,", ".mean(-2,"),
    "squared": (".norm(dim=-1)", ".square().sum(-1)"),
    "L1": (".norm(dim=-1)", ".abs().sum(-1)"),
    "heads added up": (".permute(1, 2, 0)", ".sum(-1, keepdim=True).permute(1, 2, 0)"),
    "norms of tokens instead of norms of sums": (
        "cartridge.kv.sum(-2, dtype=torch.float32)",
        "cartridge.kv.norm(dim=-1).sum(-1)[..., None]",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed([check_the_sums_lengths], plant_bug(*PLANTED[fault], energy))


def test_half_precision_is_summed_in_float32():
    """In float16 the squares of 300 would overflow."""
    cartridge = FakeModel.random().cartridge(range(8), dtype=torch.float16)
    cartridge.kv[:] = 300
    scores = energy.kri_score_blocks(cartridge)

    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, torch.full((3, 2, 2), 2 * 1200 * 8**0.5))
