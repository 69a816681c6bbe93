"""The scheduler's side without an engine: refusals, and what is served dense instead."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.orders import Row
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.scheduling import Dispatcher
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf
from kri_core.substrate.vllm.trace import Trace


def dispatcher_of(extra, trace=None):
    settings = Settings.parse(extra)
    shelf = Shelf.of(settings.cartridges, 16, lambda _: None)
    return Dispatcher(Planner(settings, shelf, 16, "torch.float32"), trace)


def asked(shop, request_id="r", **params):
    return Asked(request_id, [*shop.cartridges["plain"].token_ids, 5], params)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"cartridge_id": "nope"}, "request"),
        ({"stack": "nope"}, "plugin"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_and_counted_by_reason(
    extra, shop, params, reason
):
    dispatcher = dispatcher_of(extra)

    assert dispatcher.arrive(asked(shop, **params)) is None
    assert dispatcher.is_refused("r")
    assert dispatcher.counts.total == {f"refused_{reason}": 1}
    dispatcher.finish("r")
    assert dispatcher.live == 0


def test_only_where_configured_so_it_is_served_dense_and_counted(extra, shop):
    dispatcher = dispatcher_of(extra | {"on_error": "dense"})

    assert dispatcher.arrive(asked(shop, stack="nope")) is None
    assert not dispatcher.is_refused("r")
    assert dispatcher.counts.total == {"dense_requests": 1, "dense_after_plugin": 1}
    assert dispatcher.live == 0


def test_a_damaged_cartridge_refuses_its_request_and_no_other(extra, shop, tmp_path):
    from kri_core.artifacts import write_cartridge

    path = tmp_path / "c.safetensors"
    write_cartridge(shop.cartridges["plain"], path)
    dispatcher = dispatcher_of({"cartridges": {**extra["cartridges"], "c": str(path)}})
    path.write_bytes(b"\x01" * 100)

    assert dispatcher.arrive(asked(shop, cartridge_id="c")) is None
    assert dispatcher.counts.total == {"refused_artifact": 1}
    assert dispatcher.arrive(asked(shop, "other", cartridge_id="plain")) is not None


def test_a_bug_in_a_plugin_refuses_the_request_only(extra, shop, monkeypatch):
    dispatcher = dispatcher_of(extra)

    def broken(_self, _asked):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(Planner, "plan", broken)
    dispatcher.arrive(asked(shop))

    assert dispatcher.is_refused("r")
    assert dispatcher.counts.total == {"refused_plugin": 1}


def test_orders_are_given_once(extra, shop):
    """And none for a request whose rows are all there."""
    dispatcher = dispatcher_of(extra)
    plan = dispatcher.arrive(asked(shop))
    rows = (Row(0, 16, 7),)

    dispatcher.placed("r", rows, resident=3)
    (order,) = dispatcher.take_orders().loads
    dispatcher.placed("r", (), resident=5)

    assert (order.rows, order.sha256) == (rows, plan.sha256)
    assert dispatcher.take_orders().loads == ()


def test_the_interval_s_counters_start_again_and_the_total_goes_on(extra, shop):
    dispatcher = dispatcher_of(extra)
    dispatcher.arrive(asked(shop, "one"))
    first = dispatcher.counts.take()
    dispatcher.arrive(asked(shop, "two"))
    second = dispatcher.counts.take()

    assert first.data["routed_requests"] == second.data["routed_requests"] == 1
    assert first.aggregate(second).data["blocks_selected"] == 8
    assert dispatcher.counts.total["routed_requests"] == 2
    assert dispatcher.counts.take() is None


def test_the_trace_has_a_line_per_routed_request(extra, shop, tmp_path):
    path = tmp_path / "trace.jsonl"
    dispatcher = dispatcher_of(extra, Trace(path))
    dispatcher.arrive(asked(shop, "one"))
    dispatcher.arrive(Asked("dense", [1, 2, 3]))

    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["cartridge"], line["kept"]) == ("plain", [0, 9, 10, 11])
    assert line["question_token_ids"] == [5]
