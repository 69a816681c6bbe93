"""Order by (−score, block): ties, signed zeros, and what must not change the list."""

import pytest
import torch

from kri_core.builtin.top_k import Params, kri_select_blocks
from kri_core.types import BlockScores, Split

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]


def select(values, mid_budget, split=None, device="cpu"):
    scores = BlockScores(torch.as_tensor(values, dtype=torch.float32, device=device))
    split = split or Split((), tuple(range(scores.num_blocks)), (), mid_budget)
    return kri_select_blocks(scores, split, Params())


def test_the_highest_pooled_scores_are_kept_beside_the_pins():
    values = [[[9.0, 0.0, 1.0, 0.0, 9.0, 9.0]], [[9.0, 0.0, 1.0, 3.0, 9.0, 9.0]]]
    split = Split((0,), (1, 2, 3), (4, 5), 1)

    assert set(select(values, 1, split)) == {0, 3, 4, 5}


@pytest.mark.parametrize("device", DEVICES)
def test_equal_scores_go_to_the_earlier_block(device):
    assert select(torch.zeros(1, 1, 40), 4, device=device) == (0, 1, 2, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_minus_zero_ties_with_zero(device):
    assert select([[[-0.0, 0.0, -0.0, 0.0]]], 2, device=device) == (0, 1)
    assert select([[[0.0, -0.0, 0.0, -0.0]]], 2, device=device) == (0, 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_blocks", [7, 37, 130, 513])
def test_blocks_with_equal_columns_tie_whatever_the_shape(num_blocks, device):
    """A float32 mean over (30, 3) differs between columns by their place in a vector register."""
    column = torch.randn(30, 3, 1, generator=torch.Generator().manual_seed(0))
    values = column.expand(30, 3, num_blocks).contiguous()

    assert select(values, 5, device=device) == (0, 1, 2, 3, 4)


def test_raising_a_score_never_removes_its_block():
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        values = torch.rand(2, 2, 12, generator=generator)
        kept = select(values, 4)
        for block in kept:
            raised = values.clone()
            raised[..., block] += 0.5
            assert block in select(raised, 4)


def test_a_constant_or_repeated_heads_keep_the_list():
    values = torch.tensor([[[0.25, 2.0, 1.5, 0.5, 1.75]]])
    kept = select(values, 3)

    assert kept == (1, 4, 2)
    assert select(values + 8.0, 3) == kept
    assert select(values.repeat(1, 5, 1), 3) == kept
    assert select(values.repeat(7, 1, 1), 3) == kept


def test_no_budget_keeps_the_pins_only():
    assert select([[[5.0, 1.0, 2.0]]], 0, Split((0,), (1,), (2,), 0)) == (0, 2)
