"""Repairs in a running engine: the hf substrate's answers, and only of the request that asked."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from attrs import evolve

from kri_core.artifacts import read_prior, write_cartridge, write_overlay
from kri_core.errors import PluginError
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.hf import answer, build_from_tokens, run_repairs
from kri_core.substrate.hf.overlay import bake_overlay
from kri_core.types import Query

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

ROUTED = "A1R1K2"
OVERLAID, THE_SAME = f"{ROUTED}+xa[deviation=v,ratio=0.25]", f"{ROUTED}+xa25[deviation=v]"
STACKS = {  # with the kept tokens that are made afresh, of 4 blocks of 16 and the tail of 8
    f"{ROUTED}+xa25": 18,
    f"{ROUTED}+xa[deviation=v,ratio=0.4]": 29,
    f"{ROUTED}+xa[deviation=kv,ratio=0.3,check_layer=2]": 22,
    f"{ROUTED}+xa[mode=gradual,ratio=0.5]": 47,
    f"{ROUTED}+xa[ratio=1]": 72,
    f"{ROUTED}+xa[ratio=0]": 0,
    f"{ROUTED}+xa15+xa15[deviation=v]": None,
}


@pytest.fixture(scope="module")
def single(shop, tmp_path_factory):
    """A cartridge of one token."""
    cartridge = build_from_tokens(shop.model, [3], cart_id="single", block_size=16)
    path = tmp_path_factory.mktemp("single") / "single.safetensors"
    write_cartridge(cartridge, path)
    return SimpleNamespace(cartridge=cartridge, path=path)


@pytest.fixture(scope="module")
def overlay(shop, tmp_path_factory):
    """What OVERLAID comes to for `plain`."""
    router, cartridge = Router.from_config(parse(OVERLAID)), shop.cartridges["plain"]
    prior = read_prior(shop.priors["plain"][0])
    manifest = router.route(cartridge, None, prior)
    made, _ = bake_overlay(shop.model, cartridge, router, manifest)
    path = tmp_path_factory.mktemp("overlays") / "plain.safetensors"
    write_overlay(made, path)
    return SimpleNamespace(made=made, path=path)


@pytest.fixture(scope="module")
def engine(start, extra, single, overlay):
    """Room for 44 blocks: a repaired request's rows are its own, so a few fill it."""
    cartridges = {**extra["cartridges"], "single": str(single.path)}
    routing = {**extra["routing"], "overlays": {"plain": str(overlay.path)}}
    with start(
        {**extra, "cartridges": cartridges, "routing": routing},
        worker_cls="kri_core.substrate.vllm.workers.RoutedCPUWorker",
        max_num_batched_tokens=64,
        max_num_seqs=16,
        num_gpu_blocks_override=45,
    ) as running:
        yield running


@pytest.fixture
def said_by_vllm():
    """Lines of our loggers, which vLLM keeps from the root's."""
    import logging

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    yield lambda: "\n".join(lines)
    logger.removeHandler(handler)


@pytest.fixture(scope="module")
def repaired(shop):
    """The hf substrate's answer by a stack, over the blocks the engine kept."""

    def of(cartridge, stack, kept, question, tokens=6):
        router = Router.from_config(evolve(parse(stack), scorer=None))
        whole = Router.from_config(parse("whole")).route(cartridge, Query(tuple(question)))
        manifest = evolve(whole, kept=tuple(kept))
        ((prefix, done),) = run_repairs(shop.model, cartridge, router, [(manifest, question)])
        return answer(shop.model, cartridge, kept, question, tokens, prefix), done

    return of


def test_every_repair_in_a_mixed_batch_is_that_of_the_hf_substrate(engine, shop, agree, repaired):
    question = [5, 6, 7, 8, 9]
    asked = [("plain", question, {"stack": stack}) for stack in STACKS]
    others = [("plain", question, {"stack": ROUTED}), ("even", question, {"enabled": False})]

    *said, routed, dense = engine.ask_all([*asked, *others])

    agree(routed, engine.reference("plain", routed.kri["selected"], question))
    assert dense.kri is None
    agree(dense, engine.reference("even", range(12), question))
    for one, (stack, count) in zip(said, STACKS.items(), strict=True):
        reference, done = repaired(shop.cartridges["plain"], stack, one.kri["selected"], question)
        agree(one, reference)
        union = {token for repair in done for token in repair.report.refreshed}
        assert one.kri["repair"]["tokens"] == len(union)
        assert count in (len(union), None)
        assert "request_id" not in one.kri["repair"]
        assert one.kri["repair"]["kept_tokens"] == 72
        mean = done[0].report.deviation_mean
        assert one.kri["repair"]["deviation_mean"] == pytest.approx(mean, rel=1e-4)
    assert engine.dispatcher.live == 0


def test_a_repaired_answer_is_not_the_unrepaired_one(engine):
    """The control: with the repair switched off the answers above would not agree."""
    plain = engine.ask("plain", stack=ROUTED)
    assert plain.kri["repair"] is None

    for stack, count in STACKS.items():
        said = engine.ask("plain", stack=stack)
        apart = max(abs(a - b) for a, b in zip(said.logprobs, plain.logprobs, strict=True))
        assert (apart > 1e-2) == (count != 0), stack


def test_the_plan_is_a_quarter_of_the_kept_tokens_rounded_up(engine):
    """CASES 37; `even` has no tail, and one token's quarter is that token."""
    stack = f"{ROUTED}+xa25"
    for document, kept in {"plain": 72, "even": 64, "short": 68, "single": 1}.items():
        prompt = [3, 5, 6] if document == "single" else document
        asked = {"stack": stack, "cartridge_id": document}
        repair = engine.ask_all([(prompt, [5, 6], asked)])[0].kri["repair"]
        assert (repair["tokens"], repair["kept_tokens"]) == (math.ceil(kept / 4), kept)


@pytest.mark.parametrize(("cart_id", "count"), [("plain", 200), ("even", 192)])
def test_a_prompt_that_is_all_cartridge_is_repaired_too(
    engine, shop, agree, repaired, cart_id, count
):
    """CASES 39: its last token is computed, and all before it are as a shorter cartridge's."""
    stack = f"{ROUTED}+xa25"
    tokens = shop.cartridges[cart_id].token_ids
    shorter = build_from_tokens(shop.model, tokens[:-1], cart_id="shorter", block_size=16)

    first, second = (engine.ask(cart_id, question=[], stack=stack) for _ in range(2))

    kept = [block for block in first.kri["selected"] if block < shorter.layout.num_blocks]
    reference, done = repaired(shorter, stack, kept, tokens[-1:])
    agree(first, reference)
    assert first.kri["cartridge_tokens"] == count - 1
    assert first.kri["repair"]["tokens"] == len(done[0].report.refreshed)
    assert (second.tokens, second.logprobs) == (first.tokens, first.logprobs)


def test_no_other_request_is_given_repaired_rows(engine, agree):
    engine.forget()
    said = engine.ask("plain", stack=f"{ROUTED}+xa25")
    later = engine.ask("plain", stack=ROUTED)
    again = engine.ask("plain", stack=f"{ROUTED}+xa25")

    assert later.kri["rows_resident"] == 0
    agree(later, engine.reference("plain", later.kri["selected"]))
    assert again.kri["rows_resident"] == 0
    assert (again.tokens, again.logprobs) == (said.tokens, said.logprobs)


def test_the_nested_forward_leaves_the_tables_of_the_step_around_it_alone(engine):
    """A builder keeps its tables at one address, and the engine's hold the step's own."""
    engine.ask("plain", stack=f"{ROUTED}+xa25")

    own = engine.worker._repairer.forward._own_builders()
    assert [type(builder) for builder in own] == [type(engine.builder)]
    assert own[0] is not engine.builder


def test_a_repair_of_nothing_is_counted_and_said(engine, said_by_vllm):
    """CASES 38."""
    before = engine.worker.counts.total.copy()
    engine.ask("plain", stack=f"{ROUTED}+xa[ratio=0]")
    engine.ask("plain", stack=f"{ROUTED}+xa25")

    counted = engine.worker.counts.total - before
    assert (counted["repairs_of_nothing"], counted["repaired_tokens"]) == (1, 18)
    assert "xa[ratio=0.0] refreshed none of 72 tokens" in said_by_vllm()


def test_a_preempted_request_is_repaired_again(engine):
    """CASES 31: its rows are loaded anew, and so is what its repair made of them."""
    asked = [("plain", [9, number, 7], {"stack": f"{ROUTED}+xa25"}) for number in range(5)]
    alone = [engine.ask(*one[:2], tokens=80, **one[2]) for one in asked]
    before = engine.worker.counts.total["repaired_tokens"]

    together = engine.ask_all(asked, tokens=80)

    assert engine.worker.counts.total["repaired_tokens"] - before > 5 * 18, "nothing was preempted"
    for one, other in zip(alone, together, strict=True):
        assert other.tokens == one.tokens
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
    assert engine.dispatcher.live == 0


def test_a_repair_that_fails_ends_its_request_alone(engine, monkeypatch, agree, said_by_vllm):
    """The plugin raises in the worker, in the middle of the nested forward."""
    free, router = engine.free_blocks, engine.worker._repairer._router

    def fail(member, manifest, deviation):
        raise PluginError(f"no plan for {len(deviation)} tokens")

    def failing(stack):
        loaded = router(stack)
        broken = SimpleNamespace(stack=loaded.stack, plan_repair=fail)
        return broken if "xa15" in stack else loaded

    monkeypatch.setattr(engine.worker._repairer, "_router", failing)
    before = engine.worker.counts.total["repair_failures"]
    wanted = engine.ask("plain", stack=f"{ROUTED}+xa25")

    bad, good, routed = engine.ask_all(
        [
            ("plain", [5, 6, 7, 8, 9], {"stack": f"{ROUTED}+xa15"}),
            ("plain", [5, 6, 7, 8, 9], {"stack": f"{ROUTED}+xa25"}),
            ("plain", [5, 6, 7, 8, 9], {"stack": ROUTED}),
        ]
    )

    assert bad.finish == "error"
    assert good.tokens == wanted.tokens
    agree(routed, engine.reference("plain", routed.kri["selected"]))
    assert engine.worker.counts.total["repair_failures"] - before == 1
    assert engine.dispatcher.live == 0
    assert engine.free_blocks == free


def test_what_a_server_does_not_compute_is_refused(engine, said_by_vllm):
    said = engine.ask("plain", stack=f"{ROUTED}+xa25[reference=query_first]")

    assert (said.finish, said.kri) == ("error", None)
    assert "compares with 'query_first', and a server computes 'routed' alone" in said_by_vllm()


def test_an_overlay_answers_as_the_repair_does_and_is_shared(engine, overlay, agree):
    """Two names of one repair: the first is baked, the second runs."""
    engine.forget()
    before = engine.worker.counts.total["repaired_tokens"]
    baked = engine.ask("plain", stack=OVERLAID)
    assert engine.worker.counts.total["repaired_tokens"] == before
    again = engine.ask("plain", stack=OVERLAID)
    routed = engine.ask("plain", stack=ROUTED)
    run = engine.ask("plain", stack=THE_SAME)

    assert baked.kri["overlay"] == overlay.made.header.sha256
    assert run.kri["overlay"] is None
    assert run.kri["repair"]["tokens"] == overlay.made.header.refreshed_tokens
    assert baked.kri["selected"] == run.kri["selected"]
    assert baked.tokens == run.tokens
    assert baked.logprobs == pytest.approx(run.logprobs, abs=1e-4)
    assert (again.tokens, again.kri["rows_resident"]) == (baked.tokens, 4)
    assert routed.kri["rows_resident"] == 0
    agree(routed, engine.reference("plain", routed.kri["selected"]))
    apart = max(abs(a - b) for a, b in zip(baked.logprobs, routed.logprobs, strict=True))
    assert apart > 1e-2


def test_an_overlay_is_not_served_for_another_selection(engine, shop, agree, repaired):
    said = engine.ask("plain", stack=OVERLAID, prior="plain_down")

    assert said.kri["overlay"] is None
    assert said.kri["repair"]["tokens"] == 18
    kept = said.kri["selected"]
    agree(said, repaired(shop.cartridges["plain"], OVERLAID, kept, [5, 6, 7, 8, 9])[0])
