"""What a server says of itself is what a run reads, and names the code that answers."""

import json
from types import SimpleNamespace

import pytest

from kri_core.artifacts.fields import structure
from kri_core.running.server import About as Read
from kri_core.versions import core_version, installed_versions

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.substrate.vllm.about import About


def test_the_code_of_a_server_is_named_as_a_run_names_its_own():
    about = About()
    about._fingerprint = "f" * 64  # else of a checkpoint
    model = SimpleNamespace(dtype="torch.float32", logprobs_mode="raw_logprobs")

    said = about._said(SimpleNamespace(cartridges=()), SimpleNamespace(model_config=model))

    read = structure(Read, json.loads(json.dumps(said)), "it")
    assert read.kri_core == core_version()
    assert read.plugins == installed_versions()
    assert "kri-core 0.1.0" in read.plugins
