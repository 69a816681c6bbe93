"""Calibrations on disk, one for each model: `centre_real`, `centre_imag` and `length`.

They lie in $KRI_HOME/calibrations, named by the model's fingerprint, where every bake looks.
"""

from __future__ import annotations

from pathlib import Path

from kri_core.artifacts.contents import read_fields, write_fields
from kri_core.artifacts.opening import naming
from kri_core.artifacts.tensors import plain
from kri_core.calibration import Calibration
from kri_core.errors import ArtifactError
from kri_core.models import kri_home

PARTS = ("centre_real", "centre_imag", "length")
TEXTS = ("model_fingerprint", "num_tokens", "sha256")


def calibration_path(model_fingerprint: str) -> Path:
    """Where the calibration of this model is kept, there or not."""
    return kri_home() / "calibrations" / f"{model_fingerprint}.safetensors"


def find_calibration(model_fingerprint: str) -> Calibration | None:
    """The model's calibration; None if there is none."""
    path = calibration_path(model_fingerprint)
    if not path.exists():
        return None
    found = read_calibration(path)
    if found.model_fingerprint != model_fingerprint:
        raise ArtifactError(
            f"{path}: is the calibration of model {found.model_fingerprint[:12]}, not of "
            f"{model_fingerprint[:12]}; run kri-core calibrate again"
        )
    return found


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a .safetensors file, whole or not at all."""
    centre = calibration.centre
    tensors = dict(zip(PARTS, (centre.real, centre.imag, calibration.length), strict=True))
    values = (calibration.model_fingerprint, calibration.num_tokens, calibration.sha256)
    with naming(path):
        write_fields(path, dict(zip(TEXTS, map(str, values), strict=True)), tensors)


def read_calibration(path: Path) -> Calibration:
    """Read and check one."""
    import torch

    with naming(path):
        held = read_fields(path)
        if missing := [name for name in (*PARTS, *TEXTS) if name not in held]:
            raise ArtifactError(
                f"lacks {', '.join(missing)}, so it is no calibration; run kri-core calibrate"
            )
        real, imaginary, length = (plain(name, held[name]).float().clone() for name in PARTS)
        if real.shape != imaginary.shape:
            raise ArtifactError("centre_real and centre_imag differ in shape; calibrate again")
        count = str(held["num_tokens"])
        found = Calibration(
            centre=torch.complex(real, imaginary),
            length=length,
            model_fingerprint=str(held["model_fingerprint"]),
            num_tokens=int(count) if count.isdecimal() else 0,
        )
        if found.sha256 != held["sha256"]:
            raise ArtifactError("does not match its sha256; run kri-core calibrate again")
    return found
