"""A calibration comes back as it was written, and nothing else passes for one."""

import pytest
import torch
from attrs import evolve

from kri_core.artifacts import (
    calibration_path,
    find_calibration,
    read_calibration,
    write_calibration,
)
from kri_core.calibration import Calibration
from kri_core.errors import ArtifactError


@pytest.fixture
def made():
    draw = torch.Generator().manual_seed(0)
    centre = torch.randn(2, 4, 3, dtype=torch.complex64, generator=draw)
    return Calibration(centre, centre.abs() + 1, "ab" * 32, 1000)


def test_it_comes_back_as_it_was_written(made, tmp_path):
    path = tmp_path / "c.safetensors"
    write_calibration(made, path)
    found = read_calibration(path)

    assert found.centre.equal(made.centre)
    assert found.length.equal(made.length)
    assert (found.model_fingerprint, found.num_tokens) == ("ab" * 32, 1000)
    assert found.sha256 == made.sha256


def test_the_digest_is_of_all_it_says(made):
    others = (
        evolve(made, centre=made.centre.conj().resolve_conj()),
        evolve(made, length=made.length * 2),
        evolve(made, model_fingerprint="cd" * 32),
        evolve(made, num_tokens=999),
    )

    assert len({made.sha256, *(other.sha256 for other in others)}) == 5


def test_it_is_found_by_the_models_fingerprint(made, tmp_path, monkeypatch):
    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    path = calibration_path("ab" * 32)
    assert path == tmp_path / "calibrations" / f"{'ab' * 32}.safetensors"
    assert find_calibration("ab" * 32) is None

    path.parent.mkdir()
    write_calibration(made, path)
    assert find_calibration("ab" * 32).sha256 == made.sha256


def test_another_models_is_refused(made, tmp_path, monkeypatch):
    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    path = calibration_path("cd" * 32)
    path.parent.mkdir()
    write_calibration(made, path)

    with pytest.raises(ArtifactError, match=r"is the calibration of model abab.*, not of cdcd"):
        find_calibration("cd" * 32)


def test_a_changed_file_is_refused(made, tmp_path):
    path = tmp_path / "c.safetensors"
    write_calibration(made, path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(ArtifactError, match="does not match its sha256; run kri-core calibrate"):
        read_calibration(path)


def test_another_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "c.safetensors"
    save_file({"centre_real": torch.zeros(1, 1, 1)}, path)

    with pytest.raises(ArtifactError, match="lacks centre_imag, length, model_fingerprint"):
        read_calibration(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"length": torch.zeros(2, 4, 2)},
            r"must both be \[layer, q_head, pair\]; got \[2, 4, 3\]",
        ),
        ({"length": torch.full((2, 4, 3), torch.nan)}, "a calibration holds NaN or infinity"),
    ],
)
def test_what_is_no_calibration_is_refused(made, changes, message):
    with pytest.raises(ArtifactError, match=message):
        evolve(made, **changes)


def test_parts_of_two_shapes_are_refused(made, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "c.safetensors"
    parts = {
        "centre_real": made.length,
        "centre_imag": made.length[:1] + 0,
        "length": made.length + 0,
    }
    texts = {"model_fingerprint": "ab", "num_tokens": "1", "sha256": ""}
    save_file(parts, path, metadata=texts)

    with pytest.raises(ArtifactError, match="centre_real and centre_imag differ in shape"):
        read_calibration(path)
