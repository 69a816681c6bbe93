"""Rows whose load failed after they were published: whoever asks next must not find them."""

from __future__ import annotations

import pytest

from kri_core.errors import ArtifactError

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

KEPT = [0, 9, 10, 11]


def unreadable(cart_id):
    raise ArtifactError(f"cartridge {cart_id!r} cannot be read")


def test_unwritten_rows_of_a_request_that_was_aborted_in_the_same_step_are_not_found(
    engine, agree, monkeypatch
):
    """The engine forgets unwritten rows of running requests alone, and this one runs no more."""
    monkeypatch.setattr(engine.worker._loader, "cartridge_of", unreadable)
    client = engine.llm.llm_engine
    client.add_request("gone", {"prompt_token_ids": engine.prompt("plain")}, engine.params())
    (request_id,) = engine.dispatcher._plans
    engine.core.aborts_queue.put_nowait([request_id])  # taken after the step's forward
    while client.has_unfinished_requests() and engine.dispatcher.live:
        client.step()
    client.abort_request(["gone"])
    monkeypatch.undo()

    assert engine.worker.counts.total["load_failures"] == 1
    after = engine.ask("plain")

    assert after.kri["rows_resident"] == 0
    agree(after, engine.reference("plain", KEPT))


def test_a_refused_request_that_is_aborted_in_the_same_step_leaves_nothing(engine):
    """It waits for KV that never comes; the worker's word frees its block all the same."""
    before, client = engine.free_blocks, engine.llm.llm_engine
    params = engine.params(stack="no-such-split")
    client.add_request("gone", {"prompt_token_ids": engine.prompt("plain")}, params)
    (request_id,) = engine.dispatcher._refusals
    engine.core.aborts_queue.put_nowait([request_id])
    for _ in range(3):
        client.step()
    client.abort_request(["gone"])

    assert (engine.dispatcher.live, len(engine.scheduler.requests)) == (0, 0)
    assert engine.free_blocks == before
