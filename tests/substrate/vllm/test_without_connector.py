"""A server with the connector against one without it, or without a part of it."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

QUESTIONS = [[3, 4], list(range(90)), [7] * 20]


def asked(engine):
    """Prompts of no cartridge, and of cartridges that are not to be routed."""
    free = [([number, *range(40)], [], {}) for number in range(3)]
    bound = [("plain", question, {"enabled": False}) for question in QUESTIONS]
    return engine.ask_all([*free, *bound])


def test_plain_requests_are_answered_alike_with_and_without_the_connector(start):
    with start() as engine:
        with_it = asked(engine)
    with start(None) as engine:
        without = asked(engine)

    assert [said.tokens for said in with_it] == [said.tokens for said in without]
    for one, other in zip(with_it, without, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_plugin_may_be_loaded_again(start):
    """CASES 8: in one process; vLLM itself loads it in each of its own."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kri_core.substrate.vllm.plugin import CONNECTOR, register

    register()
    register()

    assert KVConnectorFactory.get_connector_class_by_name(CONNECTOR).__name__ == CONNECTOR


def test_a_routed_request_s_rows_must_not_be_published_as_its_own(start, monkeypatch):
    """The control of `RoutedManager.cache_blocks`: vLLM itself would trip over the shared rows."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    from kri_core.substrate.vllm.placement import RoutedManager

    monkeypatch.setattr(RoutedManager, "cache_blocks", FullAttentionManager.cache_blocks)
    with start() as engine, pytest.raises(AssertionError):
        engine.ask("plain", list(range(100)))
