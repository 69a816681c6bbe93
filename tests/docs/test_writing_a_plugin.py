"""The plugin of docs/writing-a-plugin.md, written word for word, installs, works and goes away."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from kri_core.artifacts import write_cartridge
from kri_core.testing import FakeModel


@pytest.fixture(scope="module")
def environment(make_environment):
    """It also sees this one's packages, as a user's would."""
    # addsitedir also follows the .pth files there, and so editable installs
    return make_environment(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")


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
