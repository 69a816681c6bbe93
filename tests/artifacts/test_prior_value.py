"""A prior is valid from birth, and says which cartridge it is not for."""

from __future__ import annotations

import pytest
import torch

from kri_core.errors import ArtifactError
from kri_core.prior import Prior
from kri_core.types import BlockScores

FOUR = BlockScores(torch.zeros(1, 1, 4))


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({}, "a prior must hold scores, block lists or a summary; got none"),
        (
            {"scores": BlockScores(torch.zeros(2, 2, 0))},
            r"a prior must score at least one block; got scores of \[2, 2, 0\]",
        ),
        ({"blocks": ()}, "kmeans_blocks must list at least one block; got none"),
        ({"blocks": (1, -1)}, "kmeans_blocks must hold block ids, whole and not negative; got -1"),
        ({"blocks": (1, 2.0)}, r"kmeans_blocks must hold block ids, .*; got 2\.0"),
        ({"blocks": (1, True)}, "kmeans_blocks must hold block ids, .*; got True"),
        ({"blocks": (3, 1, 3)}, "kmeans_blocks must not list a block twice; got 3 more than once"),
        (
            {"blocks": (0, 4), "scores": FOUR},
            "kmeans_blocks must list blocks below 4, the prior's number; got 4",
        ),
        (
            {"blocks_per_budget": {2: (0, 9)}, "scores": FOUR},
            r"kmeans_blocks_perK\[2\] must list blocks below 4, the prior's number; got 9",
        ),
        (
            {"blocks_per_budget": {2: (1, 1)}},
            r"kmeans_blocks_perK\[2\] must not list a block twice; got 1 more than once",
        ),
        (
            {"blocks_per_budget": {2: (0, 1, 2)}},
            r"kmeans_blocks_perK\[2\] must list at most 2 blocks; got 3",
        ),
        (
            {"blocks_per_budget": {"2": (0, 1)}},
            "kmeans_blocks_perK must map whole numbers K to lists; got key '2'",
        ),
        (
            {"blocks_per_budget": {0: (0,)}},
            "kmeans_blocks_perK must map whole numbers K to lists; got key 0",
        ),
        (
            {"summary": {"features": torch.zeros(4)}},
            r"summary.features must be \[block, dim\]; got \[4\]",
        ),
        (
            {"summary": {"features": torch.zeros(5, 2)}, "scores": FOUR},
            "must be of one number of blocks; got block_affinities 4, summary.features 5",
        ),
    ],
)
def test_a_prior_that_cannot_mean_anything_is_refused(parts, line):
    with pytest.raises(ArtifactError, match=line):
        Prior(**parts)


def test_scores_for_another_number_of_blocks_than_meta_says_are_refused(meta):
    line = "must be of one number of blocks; got block_affinities 5, meta.num_blocks 4"
    with pytest.raises(ArtifactError, match=line):
        Prior(scores=BlockScores(torch.zeros(1, 1, 5)), meta=meta)


def test_num_blocks_comes_from_whichever_part_knows_it(meta):
    assert Prior(scores=FOUR).num_blocks == 4
    assert Prior(blocks=(3,), meta=meta).num_blocks == 4
    assert Prior(summary={"features": torch.zeros(6, 2)}).num_blocks == 6
    assert Prior(blocks=(7,)).num_blocks is None


@pytest.mark.parametrize("total", [7, 9])
def test_one_block_too_many_or_too_few_does_not_belong(make_cartridge, total):
    """Even without meta, scores and features tell the number of blocks."""
    scored = Prior(scores=BlockScores(torch.zeros(1, 1, total)))
    compared = Prior(summary={"features": torch.zeros(total, 2)}, blocks=(0, 1))

    for prior in (scored, compared):
        with pytest.raises(ArtifactError, match=f"is for {total} blocks against the cartridge's 8"):
            prior.check_belongs(make_cartridge(num_tokens=32))


def test_a_listed_block_beyond_the_cartridge_does_not_belong(make_cartridge):
    line = "block 8 listed, but the cartridge has 8 blocks; bake one for this cartridge"
    with pytest.raises(ArtifactError, match=line):
        Prior(blocks=(0, 8)).check_belongs(make_cartridge(num_tokens=32))
