"""The pages under docs/, and the files that they show word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
