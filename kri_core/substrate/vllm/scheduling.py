"""The scheduler's side: a plan per live request, and what the worker is to load for it."""

from __future__ import annotations

import time

from attrs import define, field, frozen
from vllm.logger import init_logger

from kri_core.errors import KriError, PluginError, one_line
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.orders import LoadOrder, Orders, Plan, Repaired, Row
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.stats import Counts
from kri_core.substrate.vllm.trace import Trace

logger = init_logger("vllm.kri_core.scheduling")

REFUSED_TOKENS = 1  # a refused request waits for this many, and the worker says they never come

REASONS = {  # by class, as the command line's exit codes are
    "ConfigError": "request",
    "PluginError": "plugin",
    "ArtifactError": "artifact",
    "EngineError": "engine",
}


@frozen
class Placement:
    """What a request's rows came to when they were given blocks."""

    loaded: int
    resident: int


@define(eq=False)
class Dispatcher:
    """Maps of live requests; empty once all of them have finished."""

    planner: Planner
    trace: Trace | None = None
    counts: Counts = field(factory=Counts)
    _plans: dict[str, Plan] = field(factory=dict)
    _refusals: set[str] = field(factory=set)
    _placements: dict[str, Placement] = field(factory=dict)
    _repaired: dict[str, Repaired] = field(factory=dict)
    _loads: list[LoadOrder] = field(factory=list)
    _refused: list[str] = field(factory=list)

    def arrive(self, asked: Asked) -> Plan | None:
        """Settle a request, once, before it is scheduled; a refused one is remembered as such."""
        start = time.perf_counter()
        try:
            plan = self.planner.plan(asked)
        except KriError as error:
            self._refuse(asked, error)
            return None
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the engine
            self._refuse(asked, PluginError(f"routing failed: {one_line(error)}"))
            return None
        if plan is None:
            self.counts.add(dense_requests=1)
            return None
        self.counts.add(
            routed_requests=1,
            blocks_selected=len(plan.kept),
            blocks_skipped=plan.total_blocks - len(plan.kept),
            selection_seconds=time.perf_counter() - start,
        )
        self._plans[asked.request_id] = plan
        if self.trace is not None:
            self.trace.write(asked, plan)
        return plan

    def _refuse(self, asked: Asked, error: KriError) -> None:
        reason = REASONS.get(type(error).__name__, "other")
        if self.planner.settings.on_error == "dense":
            logger.warning("request %s is served dense: %s", asked.request_id, error)
            self.counts.add(dense_requests=1, **{f"dense_after_{reason}": 1})
            return
        logger.error("request %s is refused: %s", asked.request_id, error)
        self.counts.add(**{f"refused_{reason}": 1})
        self._refusals.add(asked.request_id)

    def plan_of(self, request_id: str) -> Plan | None:
        """As `Plans` says."""
        return self._plans.get(request_id)

    def is_refused(self, request_id: str) -> bool:
        """Whether the request must end in an error."""
        return request_id in self._refusals

    def placed(self, request_id: str, missing: tuple[Row, ...], resident: int) -> None:
        """As `Plans` says; called again after a preemption."""
        plan = self._plans[request_id]
        self._placements[request_id] = Placement(len(missing), resident)
        self.counts.add(rows_resident=resident)
        if missing:
            self._loads.append(
                LoadOrder(request_id, plan.cart_id, plan.sha256, missing, plan.repair, plan.overlay)
            )

    def turn_away(self, request_id: str) -> None:
        """A refused request has its place: the worker may now say that nothing comes."""
        self._refused.append(request_id)

    def take_orders(self) -> Orders:
        """What the worker has to do in this step; asked once per step."""
        orders = Orders(tuple(self._loads), tuple(self._refused))
        self._loads.clear()
        self._refused.clear()
        return orders

    def repaired(self, done: Repaired) -> None:
        """The worker has made some tokens afresh."""
        if done.request_id in self._plans:
            self._repaired[done.request_id] = done

    def finish(self, request_id: str) -> dict[str, object] | None:
        """Forget a request; what its response says of the routing."""
        self._refusals.discard(request_id)
        plan = self._plans.pop(request_id, None)
        placement = self._placements.pop(request_id, None)
        repaired = self._repaired.pop(request_id, None)
        if plan is None:
            return None
        return {
            "cartridge": plan.cart_id,
            "stack": plan.stack,
            "queries": plan.queries,
            "selected": list(plan.kept),
            "total_blocks": plan.total_blocks,
            "block_size": plan.routing_block_size,
            "kept_fraction": plan.kept_fraction,
            "cartridge_tokens": plan.num_tokens,
            "rows_loaded": placement.loaded if placement else 0,
            "rows_resident": placement.resident if placement else 0,
            "overlay": plan.overlay,
            "repair": None if repaired is None else repaired.said,
        }

    @property
    def live(self) -> int:
        """Requests in any map."""
        return len({*self._plans, *self._refusals, *self._placements, *self._repaired})
