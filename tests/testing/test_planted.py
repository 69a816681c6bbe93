"""A planted bug changes one place of a copy, and is noticed by what fails on it."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

from kri_core import ConfigError
from kri_core.testing import is_noticed, plant_bug

SOURCES = {
    "sums": """
        from __future__ import annotations
        from attrs import frozen
        @frozen
        class Params:
            weight: int = 3
        def total(values):
            return sum(values)
        """,
    "means": """
        from sums import Params, total
        def mean(values):
            return total(values) / len(values)
        """,
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """`sums`, and `means` that imports from it."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in SOURCES.items():
        tmp_path.joinpath(f"{name}.py").write_text(textwrap.dedent(source))
    yield [importlib.import_module(name) for name in SOURCES]
    for name in SOURCES:
        del sys.modules[name]


def test_the_mutant_is_wrong_and_the_module_is_not(modules):
    mutant = plant_bug("sum(values)", "max(values)", modules[0])

    assert mutant.total([1, 2]) == 2
    assert modules[0].total([1, 2]) == 3


def test_of_several_modules_the_changed_one_counts(modules):
    """`means` has names of `sums` too, and they are the right ones."""
    assert plant_bug("sum(values)", "max(values)", *modules).total([1, 2]) == 2
    assert plant_bug("weight: int = 3", "weight: int = 4", *modules).Params().weight == 4
    wrong = plant_bug("/ len(values)", "", *modules)
    assert (wrong.mean([1, 2]), wrong.total([1, 2])) == (3, 3)


@pytest.mark.parametrize(("text", "count"), [("minimum", 0), ("values", 5)])
def test_a_text_that_is_not_in_exactly_one_place_is_refused(modules, text, count):
    with pytest.raises(AssertionError, match=f"'{text}' is in {count} places, not in one"):
        plant_bug(text, "", *modules)


def raising(error):
    def check(_maths):
        raise error

    return check


def fails_to_raise(_maths):
    with pytest.raises(ValueError, match="x"):
        pass


@pytest.mark.parametrize(
    "check",
    [raising(AssertionError()), raising(IndexError()), raising(ConfigError("x")), fails_to_raise],
)
def test_a_check_that_fails_notices(check):
    assert is_noticed([lambda _maths: None, check], object())


def test_checks_that_pass_notice_nothing():
    assert not is_noticed([lambda _maths: None], object())
    assert not is_noticed([], object())


def test_a_slip_in_the_planted_text_is_no_bug_that_was_noticed():
    with pytest.raises(NameError):
        is_noticed([raising(NameError("nam"))], object())
