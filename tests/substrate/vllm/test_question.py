"""Blocks chosen for a question inside vLLM are those that the hf substrate chooses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kri_core.artifacts import calibration_path, read_prior, write_calibration, write_prior
from kri_core.bake import bake
from kri_core.cli import cli
from kri_core.config import PluginRef
from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.stack import Member
from kri_core.substrate.hf import HfProbe, calibrate, encode_with
from kri_core.substrate.vllm.asked import Asked
from kri_core.types import Query

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")
pytest.importorskip("kri_plugin_q")
pytest.importorskip("kri_plugin_t")

SCORERS = ("kri-q", "quest", "kri-t-q")
QUESTIONS = ("Where is it?", "Say what the pump needs.")
STACKS = {
    "mean": ("kri-q", "A1R1K3(kri-q[source=layer0])"),
    "every token": ("kri-q", "A0R0K4(kri-q[pool_tokens=max,source=layer0])"),
    "quest": ("quest", "A1R1K3(quest[source=layer0])"),
    "pre-RoPE": ("kri-t-q", "A1R0K3(kri-t-q[source=layer0])"),
}


@pytest.fixture(scope="module")
def priors(shop, tmp_path_factory):
    """Baked by the hf substrate: the scorers' summaries of the cartridge `plain`."""
    home = tmp_path_factory.mktemp("home")
    cartridge = shop.cartridges["plain"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRI_HOME", str(home))
        path = calibration_path(shop.model.identity.fingerprint)
        path.parent.mkdir()
        write_calibration(calibrate(shop.model, "Any text has a mean. " * 20), path)
        registry = Registry.discover()
        members = [Member.load(registry, "scorer", PluginRef(name)) for name in SCORERS]
        made = {}
        for member, prior in bake(cartridge, members, HfProbe(shop.model, cartridge, (), 16)):
            made[member.ref.name] = home / f"plain_{member.ref.name}.pt"
            write_prior(prior, made[member.ref.name])
    return made


@pytest.fixture(scope="module")
def engine(start, extra, priors):
    routing = {"stack": STACKS["mean"][1], "priors": {"plain": [str(it) for it in priors.values()]}}
    with start(extra | {"routing": routing}) as running:
        yield running


def by_command_line(shop, prior, stack, question):
    """What `kri-core route` says."""
    arguments = ["route", "--cartridge", shop.paths["plain"], "--prior", prior, "--stack", stack]
    arguments += ["--model", shop.model_path, "--query", question, "--json"]
    done = CliRunner().invoke(cli, [str(it) for it in arguments], catch_exceptions=False)
    return json.loads(done.stdout)["selected_blocks"]


def by_hf(shop, prior, stack, tokens):
    """What that command does, without loading the model again."""
    cartridge = shop.cartridges["plain"]
    probe = HfProbe(shop.model, cartridge, (), 16)
    router = Router.from_config(parse(stack))
    return list(router.route(cartridge, Query(tuple(tokens)), read_prior(prior), probe).kept)


def encoded(shop, question):
    return encode_with(shop.model.tokenizer, question)


@pytest.mark.parametrize("kind", STACKS)
def test_the_blocks_are_those_of_the_hf_substrate(engine, shop, priors, agree, kind):
    scorer, stack = STACKS[kind]
    for question in QUESTIONS:
        tokens = encoded(shop, question)
        said = engine.ask("plain", tokens, stack=stack)

        assert said.kri["selected"] == by_hf(shop, priors[scorer], stack, tokens)
        assert (said.kri["stack"], said.kri["queries"]) == (stack, "layer0")
        agree(said, engine.reference("plain", said.kri["selected"], tokens))


def test_the_blocks_are_those_of_the_command_line(engine, shop, priors):
    scorer, stack = STACKS["quest"]
    said = engine.ask("plain", encoded(shop, QUESTIONS[0]), stack=stack)

    assert said.kri["selected"] == by_command_line(shop, priors[scorer], stack, QUESTIONS[0])


def test_another_question_is_shown_other_blocks(engine, shop):
    chosen = {
        tuple(engine.ask("plain", encoded(shop, question)).kri["selected"])
        for question in QUESTIONS
    }
    assert len(chosen) == 2


def test_a_stack_that_asks_no_question_says_that_none_was_asked(engine):
    assert engine.ask("plain", stack="recency[budget=3]").kri["queries"] is None


@pytest.mark.parametrize("source", ["pinned", "full"])
def test_another_source_ends_that_request_and_says_what_to_write(engine, source):
    stack = f"A1R1K3(quest[source={source}])"
    assert engine.ask("plain", stack=stack).finish == "error"

    wanted = r"chooses blocks before any is there; write A1R1K3\(quest\[source=layer0\]\)$"
    asked = Asked("r", engine.prompt("plain"), {"stack": stack})
    for settle in (engine.dispatcher.planner.plan, engine.dispatcher.planner.check):
        with pytest.raises(ConfigError, match=wanted):
            settle(asked)


def test_a_prompt_that_ends_with_the_document_has_no_question(engine):
    assert engine.ask("plain", []).finish == "error"
    with pytest.raises(ConfigError, match="the question has no tokens; ask something"):
        engine.dispatcher.planner.plan(Asked("r", engine.prompt("plain", []), {}))
    assert engine.dispatcher.live == 0
