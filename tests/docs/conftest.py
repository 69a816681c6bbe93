"""The pages under docs/, the files that they show word for word, and fresh environments."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
# **`folder/name`** in bold, some words, then the fence that is the file
SHOWN = re.compile(r"^\*\*`([^`]+)`\*\*[^\n]*\n\n?```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def files_shown():
    """From a page's path to {file name: content} of the files it shows."""

    def files_shown(page: Path) -> dict[str, str]:
        return dict(SHOWN.findall(page.read_text(encoding="utf-8")))

    return files_shown


@frozen
class Environment:
    """A fresh virtual environment."""

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


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory):
    """A fresh environment without pip of its own; a line of a .pth file adds to its sys.path."""

    def make_environment(line: str) -> Environment:
        folder = tmp_path_factory.mktemp("venv")
        venv.create(folder, with_pip=False)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
        (packages / "ours.pth").write_text(f"{line}\n")
        return Environment(folder / "bin" / "python", packages)

    return make_environment
