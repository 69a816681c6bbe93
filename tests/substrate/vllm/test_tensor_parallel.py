"""Two ranks in processes of their own, each with one of the model's two KV heads (CASES 34)."""

from __future__ import annotations

import pytest
from attrs import evolve

from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.hf import answer, run_repairs

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

QUESTION = [5, 6, 7, 8, 9]
STACKS = {"A1R1K2": 4, "recency[budget=3]": 3, "whole": 12}  # with the blocks they keep of `plain`
REPAIRED = "A1R1K2+xa25"


@pytest.fixture(scope="module")
def engine(start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else each rank wants its own socket
        with start(
            tensor_parallel_size=2,
            distributed_executor_backend="mp",
            worker_cls="kri_core.substrate.vllm.workers.RoutedCPUWorker",
            max_num_batched_tokens=64,
            max_num_seqs=16,
        ) as running:
            yield running


def test_two_ranks_answer_as_the_hf_substrate_does(engine, agree):
    asked = [("plain", QUESTION, {"stack": stack}) for stack in STACKS]

    *routed, dense = engine.ask_all([*asked, ("even", QUESTION, {"enabled": False})])

    for one, count in zip(routed, STACKS.values(), strict=True):
        assert len(one.kri["selected"]) == count
        agree(one, engine.reference("plain", one.kri["selected"]))
    agree(dense, engine.reference("even", range(12)))


def test_two_ranks_repair_the_same_tokens_by_the_deviation_of_both(engine, shop, agree):
    """Each rank's own head alone would plan other tokens, and answer otherwise."""
    said = engine.ask("plain", stack=REPAIRED)

    cartridge = shop.cartridges["plain"]
    whole = Router.from_config(parse("whole")).route(cartridge)
    manifest = evolve(whole, kept=tuple(said.kri["selected"]))
    router = Router.from_config(parse(REPAIRED))
    ((prefix, (done,)),) = run_repairs(shop.model, cartridge, router, [(manifest, QUESTION)])
    agree(said, answer(shop.model, cartridge, manifest.kept, QUESTION, 6, prefix))
    mean = done.report.deviation_mean
    assert said.kri["repair"]["deviation_mean"] == pytest.approx(mean, rel=1e-4)


def test_what_both_ranks_loaded_is_counted_once(engine):
    engine.forget()
    before = counted(engine)

    said = engine.ask("plain")

    assert counted(engine) - before == said.kri["rows_loaded"] == 5


def counted(engine):
    """What /metrics would say."""
    metrics = engine.llm.get_metrics()
    return sum(one.value for one in metrics if one.name == "vllm:kri_rows_loaded")
