"""A stack that reads a question over blocks is refused when it is asked for, with what to write."""

from __future__ import annotations

import pytest

from kri_core.bake import bake
from kri_core.config import PluginRef
from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.stack import Member
from kri_core.substrate.vllm.question_source import check_source

pytest.importorskip("kri_plugin_q")


def check(stack, cartridge, prior=None):
    check_source(Router.from_config(parse(stack)), cartridge, prior)


@pytest.mark.parametrize(
    ("stack", "reads", "source", "write"),
    [
        ("A1R1K2(kri-q)", "kri-q", "pinned", "A1R1K2(kri-q[source=layer0])"),
        (
            "A1R1K2(quest[source=full])",
            "quest[source=full]",
            "full",
            "A1R1K2(quest[source=layer0])",
        ),
        (
            "A1R1K2(kri-q[pool_tokens=max]~top-k[pool=max])+xa25",
            "kri-q[pool_tokens=max]",
            "pinned",
            "A1R1K2(kri-q[pool_tokens=max,source=layer0]~top-k[pool=max])+xa25",
        ),
        (
            "A1R1K2(kri-t-q-late)",
            "kri-t-q-late",
            "pinned",
            "A1R1K2(kri-q[source=layer0])",  # layer 0 is none of the late ones
        ),
    ],
)
def test_another_source_than_layer_zero_is_refused_with_the_stack_to_write(
    tiny_cartridge, stack, reads, source, write
):
    with pytest.raises(ConfigError) as error:
        check(stack, tiny_cartridge)
    assert str(error.value) == (
        f"{reads} reads the question over blocks of the document (source={source}), and a server "
        f"chooses blocks before any is there; write {write}"
    )
    check(write, tiny_cartridge)


def test_a_prior_may_name_the_scorer(tiny_cartridge):
    member = Member.load(Registry.discover(), "scorer", PluginRef("kri-q"))
    ((_, prior),) = bake(tiny_cartridge, [member], None)

    with pytest.raises(ConfigError, match=r"write A1R1K2\(kri-q\[source=layer0\]\)$"):
        check("A1R1K2", tiny_cartridge, prior)
    check("A1R1K2(kri-q[source=layer0])", tiny_cartridge, prior)
    for unasked in ("recency[budget=2]", "A1R1K9", "A1R1K2(~random-middle)"):
        check(unasked, tiny_cartridge, prior)


@pytest.mark.parametrize("stack", ["A1R1K2(kri-d)", "recency[budget=2]", "A1R1K2(random)"])
def test_a_stack_that_asks_no_question_passes(tiny_cartridge, stack):
    check(stack, tiny_cartridge)
