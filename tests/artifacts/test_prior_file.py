"""Priors on disk: the three schemas, both formats, and everything a file can get wrong."""

from __future__ import annotations

import logging
import math
import time

import attrs
import pytest
import torch
from safetensors.torch import save_file

from kri_core.artifacts import convert_prior, read_prior, write_cartridge, write_prior
from kri_core.errors import ArtifactError
from kri_core.prior import Prior
from kri_core.types import BlockScores


@pytest.fixture
def save(tmp_path):
    """A file as other tools write it."""

    def save(**fields):
        torch.save(fields, tmp_path / "p.pt")
        return tmp_path / "p.pt"

    return save


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_cartridge_given_as_a_prior_is_called_one(make_cartridge, tmp_path, suffix):
    write_cartridge(make_cartridge(), tmp_path / f"a{suffix}")

    with pytest.raises(ArtifactError, match="is a cartridge, not a prior; kri-core bake makes a"):
        read_prior(tmp_path / f"a{suffix}")


def test_reads_what_was_written(meta, tmp_path, suffix, warnings):
    path = tmp_path / f"doc_kri-d{suffix}"
    written = Prior(
        scores=BlockScores(torch.rand(2, 1, 4)),
        blocks_per_budget={2: (3, 0), 16: (2, 1, 0, 3)},
        blocks=(1, 3),
        summary={
            "features": torch.rand(4, 3),
            "codes": torch.tensor([[1, 255]], dtype=torch.uint8),
            "means": torch.rand(2, 2).bfloat16(),
        },
        meta=meta,
    )
    write_prior(written, path)

    read = read_prior(path)

    assert torch.equal(read.scores.values, written.scores.values)
    assert read.blocks_per_budget == {2: (3, 0), 16: (2, 1, 0, 3)}
    assert all(type(budget) is int for budget in read.blocks_per_budget)
    assert read.blocks == (1, 3)
    assert read.meta == meta
    assert read.summary.keys() == written.summary.keys()
    for name, tensor in written.summary.items():
        assert read.summary[name].dtype == tensor.dtype
        assert torch.equal(read.summary[name], tensor)
    (warning,) = warnings()
    assert warning.startswith(f"{path}: it holds several answers; the first that fits counts: ")


@pytest.mark.parametrize(
    "prior",
    [
        Prior(scores=BlockScores(torch.rand(1, 1, 3))),
        Prior(blocks_per_budget={2: (1, 0)}),
        Prior(blocks=(2, 0)),
        Prior(summary={"features": torch.rand(3, 2)}),
    ],
    ids=["scores", "lists", "list", "summary"],
)
def test_each_part_alone_round_trips_and_binds_to_nothing(tmp_path, suffix, prior, warnings):
    write_prior(prior, tmp_path / f"p{suffix}")

    read = read_prior(tmp_path / f"p{suffix}")

    assert read.blocks == prior.blocks
    assert read.blocks_per_budget == prior.blocks_per_budget
    assert (read.scores is None) == (prior.scores is None)
    assert read.summary.keys() == prior.summary.keys()
    (warning,) = warnings()
    assert "it has no meta and binds to nothing" in warning


def test_a_torch_file_holds_the_schemas_other_tools_read(tmp_path, meta):
    prior = Prior(
        scores=BlockScores(torch.rand(1, 1, 4)), blocks_per_budget={1: (3,)}, blocks=(3,), meta=meta
    )
    write_prior(prior, tmp_path / "p.pt")

    held = torch.load(tmp_path / "p.pt", weights_only=True)

    assert torch.equal(held["block_affinities"], prior.scores.values)
    assert held["kmeans_blocks_perK"] == {1: [3]}
    assert held["kmeans_blocks"] == [3]
    assert held["meta"]["num_blocks"] == 4
    assert held["meta"]["params"] == {"norm": "relative"}


def test_the_three_schemas_of_one_ranking_give_the_same_order(save):
    scores = torch.tensor([[[0.1, 0.4, 0.3, 0.2]]])
    best = [
        read_prior(save(**fields)).scores_for(2, 4).pooled().argsort(descending=True)[:2].tolist()
        for fields in (
            {"block_affinities": scores},
            {"kmeans_blocks_perK": {2: [1, 2]}},
            {"kmeans_blocks": [1, 2, 3]},
        )
    ]

    assert best == [[1, 2]] * 3


def test_all_three_at_once_go_by_budget_then_scores(save, warnings):
    path = save(
        block_affinities=torch.tensor([[[1.0, 0.0, 0.0]]]),
        kmeans_blocks_perK={1: [1]},
        kmeans_blocks=[2],
    )
    prior = read_prior(path)

    assert prior.scores_for(1, 3).pooled().argmax() == 1
    assert prior.scores_for(2, 3).pooled().argmax() == 0
    assert any("kmeans_blocks_perK, block_affinities, kmeans_blocks" in line for line in warnings())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_cast_not_reinterpreted(save, dtype):
    values = torch.tensor([[[0.5, -2.0, 1.0]]], dtype=dtype)

    scores = read_prior(save(block_affinities=values)).scores.values

    assert scores.dtype == torch.float32
    assert scores.tolist() == [[[0.5, -2.0, 1.0]]]


def test_a_parameter_and_a_strided_view_are_read_as_their_values(save):
    wide = torch.arange(12.0).reshape(1, 3, 4)
    scores = read_prior(save(block_affinities=torch.nn.Parameter(wide.mT))).scores.values

    assert torch.equal(scores, wide.mT)
    assert not scores.requires_grad


def test_scores_do_not_stay_mapped(save, tmp_path):
    """A server keeps priors for days; an overwritten file must not change or kill it."""
    path = save(block_affinities=torch.ones(1, 1, 4))
    prior = read_prior(path)

    path.write_bytes(b"\0" * path.stat().st_size)

    assert prior.scores.values.tolist() == [[[1.0] * 4]]


SCORES = "block_affinities"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            torch.zeros(3, 4),
            r"must be \[layer, kv_head, block\]; got shape \(3, 4\); bake it",
        ),
        (torch.zeros(1, 3, 4, 1), r"must be \[layer, kv_head, block\]; got shape \(1, 3, 4, 1\)"),
        (torch.tensor([[[0.0, math.nan]]]), "must be finite; 1 of 2 are not; bake it again"),
        (torch.tensor([[[math.inf, 0.0]]]), "must be finite; 1 of 2 are not"),
        (torch.tensor([[[-math.inf, 0.0]]]), "must be finite; 1 of 2 are not"),
        (torch.tensor([[[1e300]]], dtype=torch.float64), "must be finite; 1 of 1 are not"),
        (torch.zeros(1, 1, 4, dtype=torch.int64), r"are int64, wanted floats \(higher = keep\)"),
        (torch.zeros(1, 1, 4, dtype=torch.bool), "are bool, wanted floats"),
        (torch.zeros(1, 1, 4).to_sparse(), r"is sparse; save it .to_dense\(\)"),
        (torch.zeros(1, 1, 4, device="meta"), "is on the meta device: it has a shape but no"),
        (torch.zeros(1, 1, 4, dtype=torch.complex64), "is complex, wanted real numbers"),
        ([[[1.0]]], "is a list, wanted a tensor; write it again"),
        (torch.zeros(2, 2, 0), r"a prior must score at least one block; got scores of \[2, 2, 0\]"),
    ],
)
def test_scores_that_are_none_are_one_line(save, value, line):
    path = save(block_affinities=value)

    with pytest.raises(ArtifactError, match=line) as caught:
        read_prior(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantised_and_nested_scores_are_one_line(save):
    quantised = torch.quantize_per_tensor(torch.zeros(1, 1, 4), 1.0, 0, torch.qint8)
    with pytest.raises(ArtifactError, match=r"is quantised; save it .dequantize\(\)d"):
        read_prior(save(block_affinities=quantised))
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(ArtifactError, match="is nested; save it padded or one by one"):
        read_prior(save(block_affinities=nested))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "a prior must hold scores, block lists or a summary; got none"),
        ({"kmeans_blocks": [1, 1]}, "kmeans_blocks must not list a block twice"),
        ({"kmeans_blocks": [-1]}, "whole and not negative; got -1"),
        ({"kmeans_blocks": ["1"]}, "whole and not negative; got '1'"),
        ({"kmeans_blocks": "123"}, "kmeans_blocks is 123, wanted a list of block ids"),
        ({"kmeans_blocks": torch.zeros(2, 2)}, r"is tensor of shape \[2, 2\], wanted a list"),
        ({"kmeans_blocks_perK": {"16": [1]}}, "must map whole numbers K to lists; got key '16'"),
        ({"kmeans_blocks_perK": [1]}, "kmeans_blocks_perK is a list, wanted {K: list}"),
        (
            {"kmeans_blocks": [4], "block_affinities": torch.zeros(1, 1, 4)},
            "must list blocks below 4, the prior's number; got 4",
        ),
        ({"summary.x": torch.tensor([math.nan])}, "summary.x holds NaN or infinity; bake it again"),
        ({"summary.x": 3}, "summary.x is a int, wanted a tensor"),
        ({"kmeans_blocks": [1], "meta": 3}, "meta must be a mapping; got a int"),
        (
            {"kmeans_blocks": [1], "meta": {}},
            "meta lacks algorithm, .*write it again with",
        ),
        (
            {"kmeans_blocks": [1], "meta": {"schema_version": 2}},
            "is of prior schema 2, this kri-core reads up to 1; upgrade kri-core",
        ),
    ],
)
def test_fields_that_mean_nothing_are_one_line(save, fields, line):
    with pytest.raises(ArtifactError, match=rf"p\.pt: .*{line}") as caught:
        read_prior(save(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["num_blocks", "prefix_hash", "probe_sha256", "params"])
def test_meta_of_another_type_is_refused_by_name(save, meta, field):
    path = save(kmeans_blocks=[1], meta={**attrs.asdict(meta), field: 1.5})

    with pytest.raises(ArtifactError, match=rf"meta\.{field} must be .*; got '1.5'; write it"):
        read_prior(path)


@pytest.mark.parametrize("name", ["kmeans_blocks_perK.x", "kmeans_blocks_perK.016"])
def test_a_budget_that_is_no_number_is_refused(tmp_path, name):
    save_file({name: torch.tensor([1])}, tmp_path / "p.safetensors")

    with pytest.raises(ArtifactError, match=rf"{name} must end in a whole number K; write it"):
        read_prior(tmp_path / "p.safetensors")


def test_a_meta_that_is_no_json_is_refused(tmp_path):
    save_file({"kmeans_blocks": torch.tensor([1])}, tmp_path / "p.safetensors", {"meta": "{"})

    with pytest.raises(ArtifactError, match="has a meta that is not JSON; bake it again"):
        read_prior(tmp_path / "p.safetensors")


def test_a_list_saved_as_a_tensor_is_read(save):
    assert read_prior(save(kmeans_blocks=torch.tensor([2, 0]))).blocks == (2, 0)


def test_unknown_keys_and_short_lists_are_said(save, warnings):
    read_prior(save(kmeans_blocks_perK={4: [1, 0]}, prior_type="kri_g", K=4))

    assert any("keys that mean nothing here are ignored: prior_type, K" in w for w in warnings())
    assert any("[4] lists 2 blocks; the earliest others fill it up" in w for w in warnings())


@pytest.mark.parametrize("tag", ["kri_g", "kri_d"])
def test_an_old_k_means_prior_is_not_taken_for_one_of_kri_g(save, warnings, tag):
    prior = read_prior(save(kmeans_blocks_perK={2: [1, 0]}, prior_type=tag))

    assert prior.meta is None
    assert prior.blocks_per_budget == {2: (1, 0)}
    said = [w for w in warnings() if "is geometric k-means, here kmeans-keys; it is no prior" in w]
    assert len(said) == (tag == "kri_g")


def test_ten_million_blocks_are_read_in_seconds(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    write_prior(Prior(scores=BlockScores(torch.rand(1, 1, 10**7))), path)

    start = time.perf_counter()
    prior = read_prior(path)

    assert prior.num_blocks == 10**7
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("target", ["q.pt", "q.safetensors"])
def test_converting_keeps_everything(meta, tmp_path, suffix, target):
    prior = Prior(
        scores=BlockScores(torch.rand(2, 1, 4)),
        blocks_per_budget={3: (2, 1, 0)},
        summary={"features": torch.rand(4, 2)},
        meta=meta,
    )
    write_prior(prior, tmp_path / f"p{suffix}")

    convert_prior(tmp_path / f"p{suffix}", tmp_path / target)

    read = read_prior(tmp_path / target)
    assert torch.equal(read.scores.values, prior.scores.values)
    assert read.blocks_per_budget == {3: (2, 1, 0)}
    assert torch.equal(read.features, prior.features)
    assert read.meta == meta
