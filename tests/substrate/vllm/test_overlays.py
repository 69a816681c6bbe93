"""Which overlay a request is served from; no engine is needed to decide."""

from types import SimpleNamespace

import pytest
from attrs import evolve

from kri_core.artifacts import seal_overlay, write_cartridge, write_overlay
from kri_core.errors import ArtifactError, ConfigError
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.orders import Plan
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.settings import CartridgeEntry, Settings
from kri_core.substrate.vllm.shelf import Shelf

STACK = "A1R1K1(knorm)+xa25"


@pytest.fixture
def made(tiny_cartridge, tmp_path):
    """A cartridge and an overlay of it on disk, in blocks of 8."""
    cartridge, overlay = tmp_path / "doc.safetensors", tmp_path / "doc_xa25.safetensors"
    write_cartridge(tiny_cartridge, cartridge)
    manifest = Router.from_config(parse(STACK)).route(tiny_cartridge)
    kv = tiny_cartridge.kv[list(manifest.kept)]
    sealed = seal_overlay(tiny_cartridge, manifest, 7, kv, tiny_cartridge.tail)
    write_overlay(sealed, overlay)
    entry = CartridgeEntry("doc", cartridge, overlays=(overlay,))
    return SimpleNamespace(
        entry=entry, path=overlay, manifest=manifest, sealed=sealed, cartridge=tiny_cartridge
    )


@pytest.fixture
def overlays(made):
    return Overlays({"doc": made.entry})


@pytest.fixture
def planner(made):
    shelf = Shelf.of([made.entry], 8, lambda _: None)
    return Planner(Settings((made.entry,)), shelf, 8, "float32", cannot_repair="it cannot")


def asked(made, stack=STACK, question=(1, 2)):
    params = {"cartridge_id": "doc", "stack": stack}
    return Asked("one", (*made.cartridge.token_ids, *question), params)


def test_the_same_selection_by_the_same_stack_is_read_from_the_overlay(planner, made):
    """Nothing is repaired, so a server that cannot repair serves it, and its rows are shared."""
    plan = planner.plan(asked(made))
    planner.check(asked(made))

    assert plan.overlay == made.sealed.header.sha256
    assert plan.repair is None
    assert [row for row, _ in plan.shared] == list(made.manifest.kept)


def test_any_other_request_is_not(planner, made):
    with pytest.raises(ConfigError, match="xa25 cannot be run by this server: it cannot"):
        planner.plan(asked(made, "A1R1K2(knorm)+xa25"))
    with pytest.raises(ConfigError, match="xa15 cannot be run by this server: it cannot"):
        planner.check(asked(made, "A1R1K1(knorm)+xa15"))
    assert planner.plan(asked(made, "A1R1K1(knorm)")).overlay is None


def test_a_prompt_without_a_question_is_repaired_instead(planner, made):
    """Its last token is not the overlay's: it is computed."""
    with pytest.raises(ConfigError, match="cannot be run by this server"):
        planner.plan(asked(made, question=()))

    planner.cannot_repair = None
    plan = planner.plan(asked(made, question=()))
    assert (plan.overlay, plan.shared) == (None, ())
    assert plan.repair is not None


def test_rows_are_shared_by_what_is_in_them(planner, made, tiny_cartridge):
    """Neither with the cartridge's own rows, nor with another overlay's."""
    served, plain = planner.plan(asked(made)), planner.plan(asked(made, "A1R1K1(knorm)"))

    assert served.rows == plain.rows
    assert not set(served.shared) & set(plain.shared)
    assert set(served.shared) == set(planner.plan(asked(made)).shared)
    assert isinstance(plain, Plan)
    assert not set(plain.read_from("a").shared) & set(plain.read_from("b").shared)


def test_a_repaired_stack_may_be_served_only_with_its_repairs(overlays, made):
    def may(stack):
        return overlays.may_serve(made.cartridge, Router.from_config(parse(stack)))

    cartridge = evolve(made.cartridge, cart_id="doc")
    made.cartridge = cartridge
    assert may("A1R1K1+xa25")
    assert not may("A1R1K1+xa15")
    made.cartridge = evolve(cartridge, sha256="0" * 64)
    assert not may("A1R1K1+xa25")


def test_a_replaced_overlay_is_read_again_and_not_taken_for_the_planned_one(overlays, made):
    cartridge = evolve(made.cartridge, cart_id="doc")
    planned = overlays.find(cartridge, made.manifest).header.sha256
    assert overlays.get("doc", planned).header.sha256 == planned

    kv = made.cartridge.kv[list(made.manifest.kept)] * 2
    write_overlay(seal_overlay(cartridge, made.manifest, 7, kv, cartridge.tail), made.path)

    assert overlays.find(cartridge, made.manifest).header.sha256 != planned
    with pytest.raises(ArtifactError, match="was replaced after a request was planned with it"):
        overlays.get("doc", planned)


def test_an_overlay_that_could_never_be_served_stops_the_start(overlays, made):
    cartridge = evolve(made.cartridge, cart_id="doc")
    overlays.check(lambda _: cartridge, 8)
    with pytest.raises(ArtifactError, match="was baked for another content than cartridge 'doc'"):
        overlays.check(lambda _: evolve(cartridge, sha256="0" * 64), 8)
    with pytest.raises(ArtifactError, match="blocks of 8 tokens, this server routes blocks of 16"):
        overlays.check(lambda _: cartridge, 16)
    made.path.unlink()
    with pytest.raises(ArtifactError, match=r"doc_xa25\.safetensors: cannot be opened"):
        overlays.check(lambda _: cartridge, 8)


def test_the_servers_json_names_overlays_by_cartridge():
    extra = {
        "cartridges": {"doc": "doc.safetensors"},
        "routing": {"stack": STACK, "overlays": {"doc": ["a.safetensors", "b.safetensors"]}},
    }
    (entry,) = Settings.parse(extra).cartridges
    assert [path.name for path in entry.overlays] == ["a.safetensors", "b.safetensors"]

    extra["routing"]["overlays"] = {"dok": "a.safetensors"}
    with pytest.raises(ConfigError, match=r"routing\.overlays names dok, which is no cartridge"):
        Settings.parse(extra)
