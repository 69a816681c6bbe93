"""The plugin of docs/writing-a-plugin.md, written word for word, installs, works and goes away."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from attrs import frozen

from kri_core.artifacts import write_cartridge
from kri_core.testing import FakeModel


@frozen
class Environment:
    """A fresh virtual environment that also sees this one's packages, as a user's would."""

    python: Path
    packages: Path  # its own site-packages

    def run(self, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python arguments`."""
        command = [str(self.python), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done

    def cli(self, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `kri-core arguments`."""
        return self.run("-m", "kri_core.cli", *arguments, ok=ok)

    def scorers(self) -> dict[str, dict[str, str]]:
        """The scorers that list-plugins shows, by name."""
        listed = json.loads(self.cli("list-plugins", "--slot", "scorer", "--json").stdout)
        return {row["name"]: row for row in listed["plugins"]}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    ours = sysconfig.get_path("purelib")
    # addsitedir also follows the .pth files there, and so editable installs
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return Environment(folder / "bin" / "python", packages)


@pytest.fixture(scope="module")
def cartridge(tmp_path_factory):
    """Six blocks of 4 tokens and a tail."""
    path = tmp_path_factory.mktemp("cartridge") / "six.safetensors"
    write_cartridge(FakeModel.random().cartridge([7 * t % 64 for t in range(26)]), path)
    return str(path)


@pytest.fixture(scope="module")
def plugin(environment, root, files_shown, tmp_path_factory):
    """The page's folder, installed by pip without network or build isolation."""
    folder = tmp_path_factory.mktemp("plugin")
    for name, content in files_shown(root / "docs" / "writing-a-plugin.md").items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    environment.run("-m", "pip", "install", *offline, str(folder / "kri-plugin-keynorm"))
    return folder / "kri-plugin-keynorm"


def test_the_page_shows_three_files_of_36_lines_at_most(root, files_shown):
    shown = files_shown(root / "docs" / "writing-a-plugin.md")

    assert [Path(name).name for name in shown] == [
        "pyproject.toml",
        "kri_plugin_keynorm.py",
        "test_keynorm.py",
    ]
    assert sum(content.count("\n") for content in shown.values()) <= 36


def test_it_is_listed(plugin, environment):
    row = environment.scorers()["keynorm"]

    assert (row["distribution"], row["state"]) == ("kri-plugin-keynorm", "ok")


def test_its_contract_test_passes(plugin, environment):
    done = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(plugin))

    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_it_routes_a_request(plugin, environment, cartridge):
    done = environment.cli(
        "route", "--cartridge", cartridge, "--stack", "A1R1K2(keynorm)", "--json"
    )

    routed = json.loads(done.stdout)
    assert routed["stack"] == "A1R1K2(keynorm)"
    assert {0, 5} < set(routed["selected_blocks"])
    assert len(routed["selected_blocks"]) == 4


def test_its_files_deleted_by_hand_break_nothing_else(plugin, environment, cartridge):
    """First the module alone, as when a checkout is removed; then what pip recorded, too."""
    others = environment.scorers().keys() - {"keynorm"}
    (environment.packages / "kri_plugin_keynorm.py").unlink()

    rows = environment.scorers()
    assert rows["keynorm"]["state"] == "broken"
    assert {name for name, row in rows.items() if row["state"] == "ok"} == others
    gone = environment.cli(
        "route", "--cartridge", cartridge, "--stack", "A1R1K2(keynorm)", ok=False
    )
    assert gone.returncode == 3
    assert "kri-plugin-keynorm" in gone.stderr
    environment.cli("route", "--cartridge", cartridge, "--stack", "whole")

    for left in environment.packages.glob("kri_plugin_keynorm-*.dist-info/*"):
        left.unlink()
    assert environment.scorers().keys() == others
    environment.cli("route", "--cartridge", cartridge, "--stack", "whole")
