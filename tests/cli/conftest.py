"""The command line in this process: a tiny model directory, a document, a cartridge, priors."""

import subprocess
import sys

import pytest

from kri_core.testing.tiny import save_tiny

DOCUMENT = (
    "The pump is set to nine bar. " * 12
)  # with <s> 349 tokens: 21 blocks of 16 and a tail of 13


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A folder with model/, doc.txt, doc.safetensors and priors of two scorers, made once."""
    folder = tmp_path_factory.mktemp("workshop")
    save_tiny(folder / "model")
    (folder / "doc.txt").write_text(DOCUMENT)
    (folder / "probes.txt").write_text("\\n\\nIt says\n\nThe bar is\n")
    build = ("cartridge", "build", "--model", "model", "--text", "doc.txt")
    call(folder, *build, "--out", "doc.safetensors")
    bake = ("bake", "--cartridge", "doc.safetensors", "--probes", "probes.txt")
    call(folder, *bake, "--scorer", "kri-d", "--scorer", "kri-d-kv-sum", "--out", "priors")
    return folder


def call(folder, *arguments):
    """A command in a process of its own, which must succeed."""
    command = [sys.executable, "-m", "kri_core.cli", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


@pytest.fixture
def here(workshop, monkeypatch):
    """The workshop as the current folder."""
    monkeypatch.chdir(workshop)
    return workshop
