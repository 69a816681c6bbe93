"""Counters of both sides, as vLLM's own statistics and Prometheus metrics carry them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import define, field
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.v1.metrics.utils import create_metric_per_engine

MEANING = {
    "routed_requests": "Requests served from a cartridge",
    "dense_requests": "Requests served without one",
    "blocks_selected": "Blocks of cartridges that requests attend to",
    "blocks_skipped": "Blocks of cartridges that requests do not attend to",
    "rows_loaded": "Cache blocks written from cartridges",
    "rows_resident": "Cache blocks of cartridges that were there already",
    "bytes_read": "Bytes of KV read from cartridges",
    "selection_seconds": "Seconds spent choosing blocks",
    "load_seconds": "Seconds spent loading KV",
    "repaired_tokens": "Tokens whose KV was made afresh",
    "repairs_of_nothing": "Requests whose repair made no token afresh",
    "repair_failures": "Requests whose repair failed",
    "load_failures": "Requests whose KV could not be loaded",
    "refused_request": "Requests refused: what they ask cannot be meant",
    "refused_plugin": "Requests refused: a plugin is missing or broken",
    "refused_artifact": "Requests refused: a cartridge or prior is damaged or another one's",
    "refused_engine": "Requests refused: the engine cannot do it",
    "refused_other": "Requests refused for another reason",
    "dense_after_request": "Requests served dense instead of refused (request)",
    "dense_after_plugin": "Requests served dense instead of refused (plugin)",
    "dense_after_artifact": "Requests served dense instead of refused (artifact)",
    "dense_after_engine": "Requests served dense instead of refused (engine)",
    "dense_after_other": "Requests served dense instead of refused (other)",
}


class RoutingStats(KVConnectorStats):
    """Counts of one interval: plain numbers by the names of `MEANING`."""

    data: dict[str, float]

    def reset(self) -> None:
        """Forget them."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> RoutingStats:
        """Sums."""
        return RoutingStats(data=dict(Counter(self.data) + Counter(other.data)))

    def reduce(self) -> dict[str, int | float]:
        """What the log line shows."""
        return {name: round(value, 3) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data


@define(eq=False)
class Counts:
    """One side's counters: of the interval, until they are taken, and in all."""

    total: Counter[str] = field(factory=Counter)
    _interval: Counter[str] = field(factory=Counter)

    def add(self, **counts: float) -> None:
        """Count on."""
        for held in (self.total, self._interval):
            held.update(counts)

    def take(self) -> RoutingStats | None:
        """The interval's, which then starts again; None of an empty one."""
        if not self._interval:
            return None
        taken = RoutingStats(data=dict(self._interval))
        self._interval.clear()
        return taken


class RoutingMetrics(KVConnectorPromMetrics):
    """A Prometheus counter `vllm:kri_<name>` for each of `MEANING`."""

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - vLLM's own
        super().__init__(*args)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(
                    name=f"vllm:kri_{name}", documentation=text, labelnames=self._labelnames
                ),
                self.per_engine_labelvalues,
            )
            for name, text in MEANING.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one interval."""
        for name, value in transfer_stats_data.items():
            self._counters[name][engine_idx].inc(value)
