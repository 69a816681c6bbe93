from __future__ import annotations

import math

import pytest
import torch

from kri_core.substrate.hf import Answer, divergence


def answered(*rows):
    logprobs = torch.tensor(rows).log()
    return Answer((), (), logprobs, kv_bytes=0, load_seconds=0, prefill_seconds=0, decode_seconds=0)


def test_divergence_is_the_mean_kl_of_dense_to_routed():
    """KL((½, ½) ‖ (¼, ¾)) = ½ ln 2 + ½ ln ⅔; the second token agrees."""
    dense, routed = answered([0.5, 0.5], [0.9, 0.1]), answered([0.25, 0.75], [0.9, 0.1])

    expected = (0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2
    assert divergence(dense, routed) == pytest.approx(expected, abs=1e-7)
    assert divergence(dense, dense) == 0


def test_divergence_is_not_symmetric():
    dense, routed = answered([0.5, 0.5]), answered([0.25, 0.75])
    assert divergence(dense, routed) != pytest.approx(divergence(routed, dense))
