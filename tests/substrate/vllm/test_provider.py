"""The provider of block lists by hash; no vLLM in it."""

import subprocess
import sys

import pytest
import torch
from attrs import evolve

from kri_core.artifacts import write_prior
from kri_core.errors import ArtifactError, ConfigError
from kri_core.prior import Prior, PriorMeta
from kri_core.substrate.vllm.provider import BlockManifest, CartridgeKRIProvider
from kri_core.types import BlockScores

SCORES = (0.1, 0.9, 0.5, 0.9, 0.2)


def scored(*values):
    return Prior(scores=BlockScores(torch.tensor(values).reshape(1, 1, -1)))


def meta(query_hash):
    digest = "0" * 64
    return PriorMeta(
        algorithm="kri-d",
        algorithm_version="1",
        params={},
        model_id="tiny",
        model_revision=None,
        model_fingerprint=digest,
        num_layers=1,
        num_kv_heads=1,
        score_heads=1,
        num_blocks=5,
        block_size=16,
        doc_len=80,
        prefix_hash=digest,
        cartridge_sha256=digest,
        probe_sha256=None,
        dtype="float32",
        created_at="2026-01-01T00:00:00+00:00",
        query_hash=query_hash,
    )


@pytest.fixture
def register(tmp_path):
    """Write a prior, register it, hand back the provider."""
    provider = CartridgeKRIProvider()

    def run(prior, prefix="prefix", name="patient_kri-d.pt", **options):
        write_prior(prior, tmp_path / name)
        provider.register_prior(prefix, tmp_path / name, **options)
        return provider

    return run


def test_the_best_blocks_ascend_and_ties_go_to_the_earlier(register):
    found = register(scored(*SCORES)).get_manifest("prefix", None, 3)

    assert found.block_indices == (1, 2, 3)
    assert (found.total_blocks, found.K, found.prior_type) == (5, 3, "unknown")
    assert found.resource_id == "patient_kri-d"
    assert (found.savings_blocks, found.savings_fraction) == (2, 0.4)
    assert register(scored(*SCORES)).get_manifest("prefix", None, 1).block_indices == (1,)


def test_a_shorter_prefix_is_kept_whole_and_says_what_was_asked(register):
    found = register(scored(*SCORES)).get_manifest("prefix", None, 16)

    assert found.block_indices == (0, 1, 2, 3, 4)
    assert (found.K, found.K_requested, found.savings_blocks) == (5, 16, 0)


def test_the_very_question_comes_before_the_prefix_and_a_miss_is_none(register):
    general = scored(*SCORES)
    register(general)
    provider = register(
        evolve(scored(0.9, 0.1, 0.1, 0.1, 0.8), meta=meta("question")), name="asked.pt"
    )

    assert provider.get_manifest("prefix", "question", 2).block_indices == (0, 4)
    assert provider.get_manifest("prefix", "question", 2).query_hash == "question"
    assert provider.get_manifest("prefix", "another", 2).block_indices == (1, 3)
    assert provider.get_manifest("prefix", "another", 2).query_hash is None
    assert provider.get_manifest("prefix", None, 2).block_indices == (1, 3)
    assert provider.get_manifest("elsewhere", "question", 2) is None


def test_a_prior_of_one_question_answers_no_other(register):
    provider = register(evolve(scored(*SCORES), meta=meta("question")))

    assert provider.get_manifest("prefix", "another", 2) is None
    assert provider.get_manifest("prefix", None, 2) is None


def test_a_list_for_this_very_budget_comes_before_scores(register):
    prior = evolve(scored(*SCORES), blocks_per_budget={2: (4, 0)})

    assert register(prior).get_manifest("prefix", None, 2).block_indices == (0, 4)
    assert register(prior).get_manifest("prefix", None, 3).block_indices == (1, 2, 3)


def test_bare_lists_need_the_number_of_blocks(register):
    lists = Prior(blocks_per_budget={2: (4, 0)})

    with pytest.raises(ArtifactError, match=r"holds block lists alone.*give num_blocks"):
        register(lists)
    found = register(lists, num_blocks=9).get_manifest("prefix", None, 2)
    assert (found.block_indices, found.total_blocks) == ((0, 4), 9)


def test_a_prior_of_another_number_of_blocks_is_refused(register):
    with pytest.raises(ArtifactError, match="is a prior of 5 blocks, not of 6; register the prior"):
        register(scored(*SCORES), num_blocks=6)


def test_a_prior_that_needs_the_question_is_refused(register):
    prior = Prior(summary={"features": torch.eye(5)}, meta=meta(None))

    with pytest.raises(ArtifactError, match="answers only with the question's own queries; name"):
        register(prior)


@pytest.mark.parametrize("budget", [0, -1, 2.0, True])
def test_k_is_a_whole_number(register, budget):
    with pytest.raises(ConfigError, match="give a whole number of blocks, such as 16"):
        register(scored(*SCORES)).get_manifest("prefix", None, budget)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"total_blocks": 0}, "total_blocks must be at least 1; got 0"),
        ({"block_indices": (2, 1)}, "must ascend, none of them twice; got [2, 1]"),
        ({"block_indices": (1, 1)}, "must ascend, none of them twice; got [1, 1]"),
        ({"K": 3}, "K must be the number of blocks, 2; got 3"),
        ({"block_indices": (1, 4)}, "must be below 4 and not negative; got [1, 4]"),
        ({"block_indices": (-1, 2)}, "must be below 4 and not negative; got [-1, 2]"),
    ],
)
def test_a_manifest_is_valid_from_birth(wrong, line):
    right = {"block_indices": (1, 2), "total_blocks": 4, "K": 2, "prior_type": "kri-d"}
    names = {"resource_id": "patient", "K_requested": 2, "prefix_hash": "prefix"}

    BlockManifest(**right, **names)
    with pytest.raises(ArtifactError) as error:
        BlockManifest(**right | wrong, **names)
    assert str(error.value).endswith(line)


def test_the_digest_tells_manifests_apart(register):
    provider = register(scored(*SCORES))
    two, again, three = (provider.get_manifest("prefix", None, budget) for budget in (2, 2, 3))

    assert two.digest == again.digest != three.digest


def test_it_needs_no_vllm():
    code = "import sys, kri_core.substrate.vllm.provider; sys.exit('vllm' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
