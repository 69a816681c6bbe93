"""docs/serving.md shows what the server takes, and names what it says."""

import json
import re

import pytest

from kri_core.substrate.vllm.asked import PARAMS
from kri_core.substrate.vllm.settings import CartridgeEntry, Settings


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_json_of_the_page_is_what_a_server_takes(page):
    (shown,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    said = json.loads(shown)

    settings = Settings.parse(said["kv_connector_extra_config"])
    assert (said["kv_connector"], settings.stack) == ("CartridgeConnector", "A1R2K13")
    assert len(settings.cartridges) == 2
    assert all(isinstance(entry, CartridgeEntry) for entry in settings.cartridges)


def test_every_parameter_of_a_request_is_explained(page):
    assert [name for name in sorted(PARAMS) if f"`{name}`" not in page] == []


def test_every_metric_and_every_key_of_the_response_is_named(page, root):
    """Read from the source: the modules need vLLM."""
    serving = root / "kri_core" / "substrate" / "vllm"
    meaning = (serving / "stats.py").read_text(encoding="utf-8").split("\n}\n")[0]
    finish = (serving / "scheduling.py").read_text(encoding="utf-8").split("def finish")[1]
    metrics = re.findall(r'^    "(\w+)":', meaning, re.MULTILINE)
    keys = re.findall(r'^            "(\w+)":', finish, re.MULTILINE)

    assert len(metrics) > 15
    assert len(keys) > 9
    plain = [name for name in metrics if not name.startswith("dense_after_")]
    assert [name for name in (*plain, *keys) if f"`{name}`" not in page] == []


def test_the_commands_of_the_page_exist(page):
    from kri_core.cli import cli

    shown = set(re.findall(r"kri-core (\w[\w-]*)", page))
    flags = {flag for command in cli.commands.values() for p in command.params for flag in p.opts}

    assert shown <= cli.commands.keys()
    used = set(re.findall(r"kri-core [^`]*?(--[A-Za-z][\w-]*)", page))
    assert used <= flags | {"--port", "--served-model-name", "--middleware"}
