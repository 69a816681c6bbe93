"""Packages of the repository, put by pip into an environment that has kri-core alone."""

from __future__ import annotations

import json
import re
import sysconfig
from pathlib import Path

import pytest

from kri_core.artifacts import write_cartridge
from kri_core.substrate.hf import load_model
from kri_core.testing.tiny import save_tiny, tiny_cartridge

STACK = "A1R2K13(eigen)+xa25"
OFFLINE = ["--no-index", "--no-build-isolation", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def environment(make_environment, root, tmp_path_factory):
    """What pip would fetch is this environment's: all but kri-core and its plugins."""
    others = tmp_path_factory.mktemp("others")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"_?(editable_impl_)?kri[_-]", path.name):
            (others / path.name).symlink_to(path)
    environment = make_environment(str(others))
    environment.run("-m", "pip", "install", *OFFLINE, str(root))
    return environment


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model directory and a cartridge of 20 blocks."""
    folder = tmp_path_factory.mktemp("files")
    model = str(save_tiny(folder / "tiny"))
    cartridge = tiny_cartridge(load_model(model, dtype="float32", device="cpu"), 162)
    write_cartridge(cartridge, folder / "tiny.safetensors")
    return folder


def test_a_stack_asks_for_its_packages_one_by_one_and_works_with_them(environment, root, files):
    cartridge = ["--cartridge", str(files / "tiny.safetensors")]
    model = ["--model", str(files / "tiny"), "--dtype", "float32"]
    plugins, index = root / "plugins", str(files / "wheels")
    environment.run("-m", "pip", "wheel", *OFFLINE, "--no-deps", "-w", index, str(plugins / "xa25"))

    def ask(prior=()):
        return environment.cli(
            "ask", *cartridge, *model, *prior, "--stack", STACK, "--json", "Who?", ok=False
        )

    listed = json.loads(environment.cli("list-plugins", "--json").stdout)["plugins"]
    assert {row["distribution"] for row in listed} == {"kri-core"}
    without = ask()
    assert without.returncode == 3
    assert "'eigen' is not installed; pip install kri-plugin-eigen" in without.stderr

    environment.run("-m", "pip", "install", *OFFLINE, str(plugins / "eigen"))
    half = ask()
    assert half.returncode == 3
    assert f"\n  {STACK}\n  {' ' * STACK.index('xa25')}^" in half.stderr
    line = re.search(r"'xa25' is not installed; (pip install .*)", half.stderr)[1]

    environment.run("-m", *line.split(), *OFFLINE, "--find-links", index)
    prior = ["--out", str(files / "eigen.pt")]
    environment.cli("bake", *cartridge, *model, "--scorer", "eigen", *prior)
    whole = ask(["--prior", prior[1]])
    answered = json.loads(whole.stdout)
    assert (answered["stack"], len(answered["selected_blocks"])) == (STACK, 16)
    assert answered["repair"]["name"] == "xa25"
    assert answered["repair"]["refreshed"] == -(-answered["repair"]["kept_tokens"] // 4)
