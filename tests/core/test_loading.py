"""One plugin held to the hook specs: what its author got wrong is refused with what is right."""

import re

import pytest

import kri_core
from kri_core.errors import PluginError
from kri_core.hookspecs import SLOTS
from kri_core.loading import load
from kri_core.registry import Registry

SCORER = "from kri_core import hookimpl\n"
GOOD = """
@hookimpl
def kri_score_blocks(cartridge):
    pass
"""


@pytest.fixture
def loaded(environment):
    """Load a plugin, called io, from the source of its module."""

    def load_source(source, slot="scorer", value="moon.io", header=SCORER):
        environment.install("jove", {slot: {"io": value}}, {"moon.io": header + source})
        (row,) = (row for row in Registry.discover().rows if row.distribution == "jove")
        return load(row)

    return load_source


def refused(loaded, said, source, slot="scorer", **how):
    with pytest.raises(PluginError) as caught:
        loaded(source, slot, **how)
    assert str(caught.value).startswith(f"{slot} 'io' of jove 1.0{said}")


def test_a_plugin_is_loaded_with_the_arguments_its_hooks_ask_for(loaded):
    plugin = loaded(
        """
STOPS_EARLY = True

@hookimpl
def kri_select_blocks(split, scores):
    pass
""",
        "selector",
    )

    assert plugin.takes == {"kri_select_blocks": ("split", "scores")}
    assert plugin.params_class is None
    assert plugin.stops_early


@pytest.mark.parametrize(
    ("slot", "hooks"),
    [
        ("scorer", ["kri_score_blocks"]),
        ("scorer", ["kri_score_blocks", "kri_summarise_blocks"]),
        ("scorer", ["kri_summarise_blocks", "kri_score_query"]),
        ("selector", ["kri_select_blocks"]),
        ("split", ["kri_split_blocks"]),
        ("repair", ["kri_plan_repair"]),
    ],
)
def test_a_hook_may_ask_for_nothing(loaded, slot, hooks):
    plugin = loaded("".join(f"@hookimpl\ndef {hook}(): pass\n" for hook in hooks), slot)

    assert plugin.takes == dict.fromkeys(hooks, ())


# CASES 5: hooks that would be ignored


def test_a_misspelt_hook_is_refused_with_the_right_name(loaded):
    """CASES 5."""
    said = ": there is no hook 'kri_scroe_blocks'; did you mean 'kri_score_blocks'?"
    refused(loaded, said, "@hookimpl\ndef kri_scroe_blocks(cartridge): pass")


def test_a_misspelt_hook_without_a_decorator_beside_a_right_one_is_refused(loaded):
    said = ": there is no hook 'kri_summarize_blocks'; did you mean 'kri_summarise_blocks'?"
    refused(loaded, said, GOOD + "def kri_summarize_blocks(cartridge): pass")


def test_a_decorated_function_with_another_name_is_refused(loaded):
    said = ": there is no hook 'score_blocks'; did you mean 'kri_score_blocks'?"
    refused(loaded, said, "@hookimpl\ndef score_blocks(cartridge): pass")


def test_a_hook_without_the_decorator_is_refused(loaded):
    """CASES 5."""
    said = ": kri_score_blocks is not decorated; put @hookimpl above it"
    refused(loaded, said, "def kri_score_blocks(cartridge): pass")


def test_a_function_named_for_its_hook_by_specname_works(loaded):
    plugin = loaded("@hookimpl(specname='kri_score_blocks')\ndef score(cartridge): pass")

    assert plugin.takes == {"kri_score_blocks": ("cartridge",)}


def test_two_functions_for_one_hook_are_refused(loaded):
    said = ": score answers 'kri_score_blocks' a second time; keep one"
    refused(loaded, said, GOOD + "@hookimpl(specname='kri_score_blocks')\ndef score(): pass")


def test_a_hook_of_another_slot_is_refused_with_its_group(loaded):
    said = (
        ": kri_split_blocks is a split hook; register it in a module of its own under the group "
        "kri_core.splits"
    )
    refused(loaded, said, GOOD + "@hookimpl\ndef kri_split_blocks(layout): pass")


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper"])
def test_a_wrapper_is_refused(loaded, option):
    said = ": kri_score_blocks is a wrapper; a hook here answers by itself"
    refused(loaded, said, f"@hookimpl({option}=True)\ndef kri_score_blocks(cartridge): yield")


def test_a_callable_that_pluggy_would_pass_over_is_refused(loaded):
    said = ": kri_score_blocks is a partial; make it a function"
    source = "from functools import partial\nkri_score_blocks = hookimpl(partial(print))"
    refused(loaded, said, source)


# CASES 5: arguments that would never be passed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "cartrige",
            " takes 'cartrige', which the hook does not have; did you mean 'cartridge'? It has ca",
        ),
        (
            "cartridge, query",
            " takes 'query', which the hook does not have; did you mean 'probe'? It has cartridge",
        ),
        ("probe=None", " gives 'probe' a default, so it would never be passed; remove it"),
        ("*args", " takes *args; name the arguments it needs instead"),
        ("cartridge, **kwargs", " takes **kwargs; name the arguments it needs instead"),
        ("*, cartridge", " takes 'cartridge' by keyword only; remove the * before it"),
    ],
)
def test_an_argument_that_would_never_be_passed_is_refused(loaded, arguments, said):
    """CASES 5."""
    refused(
        loaded,
        f": kri_score_blocks{said}",
        f"@hookimpl\ndef kri_score_blocks({arguments}): pass",
    )


# Hooks that are enough


SCORER_FORMS = (
    "kri_score_blocks or kri_watch_prefill or kri_rank_blocks or "
    "kri_score_query with kri_summarise_blocks"
)


@pytest.mark.parametrize(
    ("slot", "source", "wanted"),
    [
        (
            "scorer",
            "",
            SCORER_FORMS,
        ),
        (
            "scorer",
            "@hookimpl\ndef kri_score_query(query): pass",
            SCORER_FORMS,
        ),
        ("selector", "def select(scores): pass", "kri_select_blocks"),
        ("split", "", "kri_split_blocks"),
        ("repair", "", "kri_plan_repair"),
    ],
)
def test_a_module_without_its_slot_s_hooks_is_refused(loaded, slot, source, wanted):
    refused(loaded, f" has no hook of its slot; define {wanted} with @hookimpl", source, slot)


def test_a_scorer_of_documents_and_of_questions_is_two_plugins(loaded):
    """Which of the two a prior would answer for could not be told from the stack."""
    said = (
        " scores in 2 ways, kri_score_blocks, kri_score_query with kri_summarise_blocks; register "
        "each under a name of its own"
    )
    both = "@hookimpl\ndef kri_summarise_blocks(): pass\n@hookimpl\ndef kri_score_query(): pass"
    refused(loaded, said, GOOD + both)


# CASES 7: what an entry point may name

INSTANCE = """
class Moon:
    STOPS_EARLY = True

    @hookimpl
    def kri_score_blocks(self, cartridge):
        pass

moon = Moon()
bare = object()
"""


def test_an_instance_with_hook_methods_works(loaded):
    """CASES 7."""
    plugin = loaded(INSTANCE, value="moon.io:moon")

    assert plugin.takes == {"kri_score_blocks": ("cartridge",)}
    assert plugin.stops_early


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Moon", "a class"),
        ("bare", "of type object"),
        ("Moon.kri_score_blocks", "of type function"),
    ],
)
def test_a_class_a_function_or_a_bare_object_is_refused(loaded, name, kind):
    """CASES 7."""
    said = (
        f": its entry point 'moon.io:{name}' is {kind}; point it at the module that holds the "
        "@hookimpl functions"
    )
    refused(loaded, said, INSTANCE, value=f"moon.io:{name}")


def test_a_missing_attribute_is_refused(loaded):
    """CASES 7."""
    said = (
        " cannot be imported: AttributeError: module 'moon.io' has no attribute 'europa'; "
        "repair its installation, or: pip uninstall jove"
    )
    refused(loaded, said, INSTANCE, value="moon.io:europa")


def test_an_instance_whose_members_raise_is_refused(loaded):
    source = """
class Moon:
    @hookimpl
    def kri_score_blocks(self): pass
    @property
    def kri_weights(self): raise OSError("no file")
moon = Moon()
"""
    said = " cannot be imported: OSError: no file; repair its installation, or: pip uninstall jove"
    refused(loaded, said, source, value="moon.io:moon")


def test_names_that_only_look_marked_are_left_alone(loaded):
    """A mock answers to any attribute, also to the one that pluggy marks hooks with."""
    source = "from unittest.mock import Mock\nhelper = Mock()\n" + GOOD

    assert loaded(source).takes == {"kri_score_blocks": ("cartridge",)}


# Params

PARAMS = """
from __future__ import annotations
from typing import Literal
from attrs import field, frozen, validators
"""


@pytest.mark.parametrize(
    "body",
    [
        "weight: float = 0.5",
        "seed: int",
        "on: bool = False",
        "name: str = 'x'",
        "fill: Literal['none', 'recent'] = 'none'",
        "seed: int = field(default=0, validator=validators.ge(0))",
        "pass",
    ],
)
def test_params_of_plain_fields_are_taken(loaded, body):
    plugin = loaded(f"@frozen\nclass Params:\n    {body}\n" + GOOD, header=PARAMS + SCORER)

    assert plugin.params_class.__name__ == "Params"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("a: list = 0", "Params.a must be int, float, bool, str or Literal; got <class 'list'>"),
        (
            "a: int | None = 0",
            "Params.a must be int, float, bool, str or Literal; got int | None",
        ),
        ("_a: int = 0", "Params._a must be a public field, its default plain or none"),
        ("a: int = None", "Params.a must be a public field, its default plain or none"),
        (
            "a: int = field(factory=int)",
            "Params.a must be a public field, its default plain or none",
        ),
        (
            "a: int = field(init=False)",
            "Params.a must be a public field, its default plain or none",
        ),
        (
            "a: Nowhere = 0",
            "name 'Nowhere' is not defined in Params; import it outside of TYPE_CHECKING",
        ),
    ],
)
def test_params_a_stack_cannot_fill_or_write_back_are_refused(loaded, body, said):
    source = f"@frozen\nclass Params:\n    {body}\n" + GOOD
    refused(loaded, f": {said}", source, header=PARAMS + SCORER)


@pytest.mark.parametrize("params", ["class Params: pass", "Params = 3"])
def test_params_are_an_attrs_class(loaded, params):
    said = ": Params must be an attrs class; decorate it with @frozen"
    refused(loaded, said, f"{params}\n{GOOD}")


def test_a_split_s_budget_is_an_argument_and_no_parameter(loaded):
    said = ": Params.budget would never be set; take the hook's argument 'budget'"
    source = (
        "@frozen\nclass Params:\n    budget: int = 3\n@hookimpl\ndef kri_split_blocks(layout): pass"
    )
    refused(loaded, said, source, "split", header=PARAMS + SCORER)


def test_every_built_in_loads():
    """The core's own plugins are held to the same specs; its tasks are no slot of a stack."""
    found = Registry.discover().rows
    rows = [row for row in found if row.distribution == "kri-core" and row.slot in SLOTS]

    assert {load(row).row.name for row in rows} >= {"tag", "top-k", "whole"}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", row.version) for row in rows)
    assert kri_core.__version__ in {row.version for row in rows}
