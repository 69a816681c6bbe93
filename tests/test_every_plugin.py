"""What holds for every plugin of the repository."""

import re
import tomllib
from pathlib import Path

import pytest

from kri_core.registry import Registry

ROOT = Path(__file__).parents[1]
SUITE_OF = {"scorer": "Scorer", "selector": "Selector", "split": "Split", "repair": "Repair"}
PROJECTS = {"kri-core": ROOT} | {
    tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]: folder
    for folder in sorted(ROOT.glob("plugins/*"))
    if (folder / "pyproject.toml").is_file()
}
ROWS = [
    row
    for row in Registry.discover().rows
    if row.distribution in PROJECTS and row.slot in SUITE_OF  # tasks are no plugins of a stack
]
by_plugin = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.slot} {row.name}")


def test_every_package_of_the_repository_is_installed():
    """Else the tests below would pass over it."""
    assert {row.distribution for row in ROWS} == set(PROJECTS)


@by_plugin
def test_it_runs_the_contract_suite_of_its_slot(row):
    """A class in the package's tests that names it and derives from the suite."""
    folder = PROJECTS[row.distribution]
    tests = folder / "tests/builtin" if folder == ROOT else folder / "tests"
    source = "".join(path.read_text() for path in tests.glob("test_*contract*.py"))
    suite = rf"\({SUITE_OF[row.slot]}Contract\):[^(]*?plugin = \"{re.escape(row.name)}[\[\"]"
    tagged = row.name == "tag" and re.search(r"\(SplitContract\):[^(]*?plugin = \"A\d", source)

    assert tagged or re.search(suite, source)


@by_plugin
def test_its_readme_says_what_a_user_must_know(row):
    if row.distribution == "kri-core":
        pytest.skip("the core's own plugins are in the guide")
    readme = (PROJECTS[row.distribution] / "README.md").read_text(encoding="utf-8")

    assert f"`{row.name}`" in readme
    assert f"pip install {row.distribution}" in readme or "kri-core" in readme


def test_the_table_of_algorithms_is_what_the_plugins_say():
    """`make docs` writes it."""
    space = {"__name__": "tools", "__file__": str(ROOT / "tools/algorithms_table.py")}
    exec((ROOT / "tools/algorithms_table.py").read_text(), space)

    assert (ROOT / "docs/algorithms.md").read_text(encoding="utf-8") == space["page"]()
