"""`bake` and `prior inspect/verify/convert`."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from kri_core.artifacts import read_prior
from kri_core.catalogue import DISTRIBUTION_OF

BAKE = ("bake", "--cartridge", "doc.safetensors", "--probes", "probes.txt")


def test_every_field_of_the_record_is_written(kri, here):
    """ALGORITHMS 0.6."""
    meta = kri("prior", "inspect", "priors/doc_kri-d.pt", "--json").json["meta"]
    header = kri("cartridge", "inspect", "doc.safetensors", "--json").json

    assert (meta["algorithm"], meta["algorithm_version"], meta["params"]) == ("kri-d", "0.1.0", {})
    assert (meta["num_layers"], meta["num_kv_heads"], meta["score_heads"]) == (3, 2, 1)
    assert (meta["num_blocks"], meta["block_size"], meta["doc_len"]) == (21, 16, 349)
    assert meta["prefix_hash"] == header["prefix_hash"]
    assert meta["cartridge_sha256"] == header["sha256"]
    assert meta["model_fingerprint"] == header["model"]["fingerprint"]
    assert len(meta["probe_sha256"]) == 2
    assert meta["dtype"] == "float32"
    assert (meta["calib_sha256"], meta["query_hash"]) == (None, None)


def test_two_scorers_get_a_file_each_under_a_readable_name(here):
    names = sorted(path.name for path in (here / "priors").iterdir())

    assert names == ["doc_kri-d-kv-sum.pt", "doc_kri-d.pt"]


def test_parameters_are_in_the_record_and_bind_the_stack(kri, here, tmp_path):
    scorer = "kri-d-kv-sum[norm=relative,layers=all]"
    done = kri(*BAKE, "--scorer", scorer, "--out", tmp_path / "p.safetensors")
    assert done.code == 0, done.err

    prior = ("--prior", tmp_path / "p.safetensors", "--cartridge", "doc.safetensors")
    taken = kri("route", *prior, "--stack", "A1R2K3", "--json").json
    refused = kri("route", *prior, "--stack", "A1R2K3(kri-d-kv-sum)")
    assert taken["stack"] == "A1R2K3(kri-d-kv-sum[norm=relative])"
    assert (refused.code, "the prior was baked by kri-d-kv-sum[norm=relative]" in refused.err) == (
        4,
        True,
    )


def test_the_ranking_does_not_depend_on_the_batch(kri, here, tmp_path):
    for batch in (1, 7, 16):
        out = tmp_path / f"{batch}.pt"
        assert kri(*BAKE, "--scorer", "kri-d", "--batch", batch, "--out", out).code == 0

    orders = [
        read_prior(tmp_path / f"{batch}.pt").scores.pooled().argsort().tolist()
        for batch in (1, 7, 16)
    ]
    assert orders[0] == orders[1] == orders[2]


def test_a_model_that_is_named_gives_features_to_a_scorer_that_needs_none(kri, here, tmp_path):
    """Selectors compare blocks by them, whoever scored."""
    for name, more in (("with.pt", ("--model", "model")), ("without.pt", ())):
        assert kri(*BAKE, "--scorer", "random", *more, "--out", tmp_path / name).code == 0

    assert read_prior(tmp_path / "with.pt").features.shape[0] == 21
    assert read_prior(tmp_path / "without.pt").features is None


def test_a_killed_bake_resumes(kri, here, tmp_path):
    """CASE 15: nothing half-written is listed; finished batches are not computed again."""
    out = tmp_path / "p.pt"
    command = [sys.executable, "-m", "kri_core.cli", *BAKE, "--scorer", "kri-d", "--batch", "1"]
    process = subprocess.Popen([*command, "--out", str(out)], cwd=here)
    work = tmp_path / ".doc.bake"
    deadline = time.monotonic() + 120
    while len(list(work.rglob("*.safetensors"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(list(work.rglob("*.safetensors")))
    assert kept >= 3
    assert not out.exists()

    assert kri(*BAKE, "--scorer", "random", "--out", tmp_path / "r.pt").code == 0
    assert len(list(work.rglob("*.safetensors"))) == kept  # none of another bake's business
    assert kri(*BAKE, "--scorer", "kri-d", "--batch", "1", "--out", out).code == 0
    assert not work.exists()
    reference = read_prior(here / "priors/doc_kri-d.pt").scores.values
    torch.testing.assert_close(read_prior(out).scores.values, reference)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--scorer", "charon"], 3, "'charon' is not installed; pip install kri-plugin-pluto"),
        (["--scorer", "kri-d]"], 2, "']' does not belong here"),
        (["--scorer", "kri-d[removal=zero]"], 2, "removal is one of mask, reprefill; got 'zero'"),
        (["--scorer", "kri-d", "--scorer", "random"], 2, "is one file for 2 scorers"),
        (["--scorer", "recency"], 3, "'recency' is a split, not a scorer"),
        (["--scorer", "kri-d", "--batch", "0"], 2, "0 is not in the range"),
        (["--scorer", "kri-d", "--probes", "gone.txt"], 2, "--probes gone.txt cannot be read"),
        (["--scorer", "kri-d", "--model", "./gone"], 5, "model './gone' is not a directory"),
    ],
)
def test_a_bad_request_is_refused_before_the_work(
    kri, here, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.setitem(DISTRIBUTION_OF, "charon", "kri-plugin-pluto")
    done = kri(*BAKE, *arguments, "--out", tmp_path / "p.pt")

    assert (done.code, message in done.err) == (code, True), done.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(kri, here, tmp_path):
    (tmp_path / "plain").touch()

    done = kri(*BAKE, "--scorer", "random", "--out", tmp_path / "plain")
    said = "cannot be made a folder (File exists); give a .pt file or another"
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_document_shorter_than_a_block_has_nothing_to_score(kri, here, tmp_path):
    """CASE 21."""
    (tmp_path / "short.txt").write_text("nine bar")
    short = tmp_path / "short.safetensors"
    kri("cartridge", "build", "--model", "model", "--text", tmp_path / "short.txt", "--out", short)

    done = kri("bake", "--cartridge", short, "--scorer", "kri-d", "--out", tmp_path / "p.pt")
    assert (done.code, "there is nothing to score" in done.err) == (2, True), done.err
    answer = kri("ask", "how?", "--cartridge", short, "--stack", "A1R2K13(random)", "--json").json
    assert (answer["selected_blocks"], answer["total_blocks"]) == ([], 0)
    assert answer["kept_fraction"] == 1.0


def test_prior_verify_says_whose_it_is(kri, here, tmp_path):
    kri("cartridge", "build", "--model", "model", "--text", "probes.txt", "--out",
        tmp_path / "other.safetensors")  # fmt: skip
    verify = ("prior", "verify", "priors/doc_kri-d.pt", "--cartridge")

    assert kri(*verify, "doc.safetensors").code == 0
    other = kri(*verify, tmp_path / "other.safetensors")
    assert (other.code, "was not baked for cartridge 'other'" in other.err) == (4, True), other.err


def test_prior_convert_keeps_scores_and_record(kri, here, tmp_path):
    assert kri("prior", "convert", "priors/doc_kri-d.pt", tmp_path / "p.safetensors").code == 0

    one, other = read_prior(here / "priors/doc_kri-d.pt"), read_prior(tmp_path / "p.safetensors")
    assert torch.equal(one.scores.values, other.scores.values)
    assert one.meta == other.meta
