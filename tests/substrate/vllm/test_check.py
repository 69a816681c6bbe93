"""`Planner.check` raises what `Planner.plan` would, without the work; no vLLM in it."""

import pytest

from kri_core.errors import KriError
from kri_core.routing import Router
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf


@pytest.fixture
def planner(shop):
    """`plain` with two priors of scores, `short` with none."""
    settings = Settings.parse(
        {
            "cartridges": {name: str(shop.paths[name]) for name in ("plain", "short")},
            "routing": {
                "stack": "A1R1K2",
                "priors": {"plain": [str(path) for path in shop.priors["plain"]]},
            },
        }
    )
    return Planner(settings, Shelf.of(settings.cartridges, 16, lambda _: None), 16, "torch.float32")


def asked(shop, name="plain", **params):
    prompt = (*shop.cartridges[name].token_ids, 5, 6, 7)
    return Asked("one", prompt, {"cartridge_id": name, **params})


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("plain", {"stack": "A1R1K2(nope)"}, "no scorer is called 'nope'"),
        ("plain", {"prior": "stranger"}, "prior 'stranger' is not one of cartridge 'plain'"),
        ("plain", {"stack": "A1R1K2(~random-middle)+xa25"}, ""),
        ("short", {}, "A1R1K2 has nothing to score blocks with; name a scorer"),
        ("short", {"stack": "A1R1K2(kri-d)"}, "kri-d"),
        ("short", {"stack": "A1R1K2(kri-q)"}, "kri-q"),
        ("plain", {"stack": "A1R1K2(kri-q)"}, "kri-q"),
    ],
)
def test_what_the_engine_would_refuse_is_refused(shop, planner, name, params, said):
    planner.cannot_repair = "there is no worker"
    with pytest.raises(KriError) as planned:
        planner.plan(asked(shop, name, **params))
    with pytest.raises(KriError) as checked:
        planner.check(asked(shop, name, **params))

    assert said in str(checked.value)
    assert (type(checked.value), str(checked.value)) == (type(planned.value), str(planned.value))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("plain", {}),
        ("plain", {"prior": "plain_down"}),
        ("short", {"stack": "recency[budget=2]"}),
        ("short", {"enabled": False, "stack": "A1R1K2"}),
        ("short", {"stack": "A1R1K2(knorm)"}),
    ],
)
def test_what_the_engine_would_plan_passes(shop, planner, name, params):
    planner.plan(asked(shop, name, **params))

    planner.check(asked(shop, name, **params))


def test_a_scorer_that_reads_all_keys_is_not_asked_twice(shop, planner, monkeypatch):
    """`knorm` without a prior reads the whole cartridge; a prior's scores cost nothing."""
    routed = []
    monkeypatch.setattr(Router, "route", lambda *_: routed.append("routed"))

    planner.check(asked(shop, "short", stack="A1R1K2(knorm)"))
    assert routed == []
    planner.check(asked(shop, "plain"))
    assert routed == ["routed"]
