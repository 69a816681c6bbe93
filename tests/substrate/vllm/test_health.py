"""What `doctor` says of a real vLLM: its levels where all is well, and the known ways it breaks."""

from __future__ import annotations

import sys

import pytest

from kri_core.cli.child import Child
from kri_core.cli.doctor_vllm import TIMEOUT, _levels, vllm_findings

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")


def looked():
    done = Child([sys.executable, "-m", "kri_core.cli.doctor_child", "vllm"]).end(TIMEOUT)
    return {one.subject: one for one in _levels("vllm 0", done)}


def test_a_server_here_can_inject_route_and_repair():
    found = {one.subject: one for one in vllm_findings("vllm 0")}
    script = found.pop("vllm script")

    assert list(found) == [
        "engine vllm", "vllm models", "vllm plugin", "vllm dense-inject", "vllm routed",
        "vllm repair",
    ]  # fmt: skip
    assert {one.state for one in found.values()} == {"ok"}, found
    assert "RoutedCPUWorker" in found["vllm repair"].detail
    assert script.state == "ok" or "PackageNotFoundError" in script.detail


def test_a_filter_that_leaves_the_plugin_out_is_said(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    found = looked()

    plugin = found["vllm plugin"]
    assert plugin.detail == "EngineError: VLLM_PLUGINS=other leaves kri_core out"
    assert plugin.fix == "unset VLLM_PLUGINS, or add kri_core to it"
    assert (found["vllm models"].state, found["vllm routed"].state) == ("ok", "missing")


def test_a_torchvision_of_another_torch_is_said(environment, monkeypatch):
    """It registers an operator that this torch does not have, which ends its import."""
    source = "raise RuntimeError('operator torchvision::nms does not exist')"
    environment.install("torchvision", {}, {"torchvision.__init__": source}, requires=())
    models = looked()["vllm models"]

    assert models.state == "broken"
    assert "operator torchvision::nms does not exist" in models.detail
    assert models.fix.startswith("pip uninstall torchvision torchaudio torchcodec")
