"""What the tests of planted bugs share."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def mutated(monkeypatch):
    """A module with one place of its source changed."""

    def mutate(module, right, wrong):
        source = Path(find_spec(module.__name__).origin).read_text()
        assert source.count(right) == 1
        mutant = ModuleType("mutant")
        monkeypatch.setitem(sys.modules, "mutant", mutant)
        exec(compile(source.replace(right, wrong), "mutant", "exec"), mutant.__dict__)
        return mutant

    return mutate
