"""Planted bugs: a test suite is worth what it notices when one place of a formula is changed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kri_core.errors import KriError

# How a check may end on a wrong formula; a NameError or TypeError is a slip in the planted text.
NOTICED = (
    ArithmeticError,
    AssertionError,
    KriError,
    LookupError,
    RuntimeError,
    ValueError,
    pytest.fail.Exception,  # of pytest.raises
)


def plant_bug(right: str, wrong: str, *modules: ModuleType) -> SimpleNamespace:
    """The names of some modules, as if `right`, a text in one of them, read `wrong`.

    The modules themselves stay as they are. The text must be in exactly one place, so that a bug
    that no longer fits the source fails its test.
    """
    places = {module: inspect.getsource(module).count(right) for module in modules}
    assert sum(places.values()) == 1, f"{right!r} is in {sum(places.values())} places, not in one"
    module = max(modules, key=places.__getitem__)
    mutant = _run(inspect.getsource(module).replace(right, wrong), f"{module.__name__}_mutant")
    names = {name: value for other in modules for name, value in vars(other).items()}
    return SimpleNamespace(**names | vars(mutant))


def is_noticed(checks: Iterable[Callable[[Any], object]], mutant: object) -> bool:
    """Whether some check, which passes on the right formulas, fails on these."""
    for check in checks:
        try:
            check(mutant)
        except NOTICED:
            return True
    return False


def _run(source: str, name: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module  # where attrs looks for the module of a class that it makes
    try:
        exec(compile(source, name, "exec"), vars(module))  # noqa: S102 - the test's own text
    finally:
        del sys.modules[name]
    return module
