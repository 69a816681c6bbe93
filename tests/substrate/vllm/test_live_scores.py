"""Scorers asked without a prior: once per content, then from memory. No vLLM in it."""

import pytest
from attrs import evolve

from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.vllm import live_scores
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.live_scores import HELD, LiveScores
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf


def router(stack):
    return Router.from_config(parse(stack))


@pytest.fixture
def made(monkeypatch):
    """Contents in the order they were scored."""
    seen, bake = [], live_scores.bake_scores

    def counted(scorer, cartridge, probe):
        seen.append(cartridge.sha256)
        return bake(scorer, cartridge, probe)

    monkeypatch.setattr(live_scores, "bake_scores", counted)
    return seen


def test_a_scorer_is_asked_once_and_says_what_it_says_live(tiny_cartridge, made):
    stack, live = router("A1R1K2(random[seed=3])"), LiveScores()

    first, again = (live.of(stack, tiny_cartridge) for _ in range(2))

    assert first is again
    assert len(made) == 1
    assert stack.route(tiny_cartridge, prior=first) == stack.route(tiny_cartridge)


def test_another_content_or_another_parameter_is_scored_anew(tiny_cartridge, made):
    live, other = LiveScores(), evolve(tiny_cartridge, sha256="another")

    for stack, cartridge in (
        ("A1R1K2(random[seed=3])", tiny_cartridge),
        ("A1R1K2(random[seed=4])", tiny_cartridge),
        ("A1R1K2(random[seed=3])", other),
    ):
        live.of(router(stack), cartridge)

    assert made == [tiny_cartridge.sha256, tiny_cartridge.sha256, "another"]


@pytest.mark.parametrize(
    "stack",
    [
        "A1R1K2",  # no scorer
        "A1R1K0(random)",  # no scores
        "A1R1K2(kri-d-kv-sum)",  # a model
        "A1R1K2(kri-q)",  # the question
    ],
)
def test_what_has_nothing_to_say_of_the_cartridge_alone_is_not_asked(tiny_cartridge, made, stack):
    assert LiveScores().of(router(stack), tiny_cartridge) is None
    assert not made


def test_no_more_are_held_than_are_said(tiny_cartridge, made):
    """The one that was not asked for longest is the one that goes."""
    live, stack = LiveScores(), router("A1R1K2(random)")
    for number in range(HELD):
        live.of(stack, evolve(tiny_cartridge, sha256=f"content {number}"))
    live.of(stack, evolve(tiny_cartridge, sha256="content 0"))
    live.of(stack, tiny_cartridge)

    assert len(made) == HELD + 1
    live.of(stack, evolve(tiny_cartridge, sha256="content 0"))
    assert len(made) == HELD + 1
    live.of(stack, evolve(tiny_cartridge, sha256="content 1"))
    assert len(made) == HELD + 2


@pytest.mark.parametrize(("block_size", "total"), [(16, 6), (32, 3)])
def test_a_server_asks_a_scorer_once_for_all_its_requests(shop, made, block_size, total):
    """Larger engine blocks are the mean of their members, as with a prior."""
    settings = Settings.parse(
        {
            "cartridges": {"short": str(shop.paths["short"])},
            "routing": {"stack": "A1R1K0(random)"},
        }
    )
    shelf = Shelf.of(settings.cartridges, 16, lambda _: None)
    planner = Planner(settings, shelf, block_size, "torch.float32")
    tokens = shop.cartridges["short"].token_ids

    plans = [
        planner.plan(Asked("r", [*tokens, question], {"stack": "A0R0K2(random)"}))
        for question in (5, 6)
    ]

    assert len(made) == 1
    assert plans[0].kept == plans[1].kept
    assert (len(plans[0].kept), plans[0].total_blocks) == (2, total)
