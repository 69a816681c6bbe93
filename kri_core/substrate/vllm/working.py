"""Carrying out a step's orders in the worker: loads, repairs, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import define, field
from vllm.logger import init_logger

from kri_core.errors import EngineError, one_line
from kri_core.substrate.vllm.loading import Loader, Rank
from kri_core.substrate.vllm.nested import NestedForward, OverRanks
from kri_core.substrate.vllm.orders import LoadOrder, Orders, Repaired, RepairOrder
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.repairing import Repairer
from kri_core.substrate.vllm.reporting import WorkerReport
from kri_core.substrate.vllm.stats import Counts, RoutingStats
from kri_core.types import Cartridge

logger = init_logger("vllm.kri_core.working")


@define(eq=False)
class Worker:
    """One rank's side of the connector."""

    cartridge_of: Callable[[str], Cartridge]
    rank: Rank
    block_size: int
    overlays: Overlays = field(factory=partial(Overlays, {}))
    counts: Counts = field(factory=Counts)
    _loader: Loader | None = None
    _repairer: Repairer | None = None
    _refused: set[str] = field(factory=set)
    _failed_blocks: set[int] = field(factory=set)
    _repaired: list[Repaired] = field(factory=list)

    def use(self, layers: Mapping[str, Any]) -> None:
        """The engine's attention layers, in the model's order."""
        self._loader = Loader(
            layers, self.cartridge_of, self.rank, self.block_size, self.counts, self.overlays
        )

    def lend(self, runner: Any) -> None:  # noqa: ANN401
        """The engine's model runner, once it can run: from here on requests can be repaired."""
        forward = NestedForward(runner, self.block_size)
        self._repairer = Repairer(forward, self._loading.layers, OverRanks(self.rank))

    def carry_out(self, orders: Orders) -> None:
        """Every load of a step; one that fails leaves the others alone."""
        self._refused |= set(orders.refused)
        for order in orders.loads:
            self._load(order)

    @property
    def _loading(self) -> Loader:
        assert self._loader is not None  # noqa: S101 - vLLM registers the caches first
        return self._loader

    def _load(self, order: LoadOrder) -> None:
        done = self._loading.load(order)
        if order.repair is not None:
            done = self._repair(order, order.repair, done)
        if not done:
            self._failed_blocks |= {row.block_id for row in order.rows}

    def _repair(self, order: LoadOrder, repair: RepairOrder, loaded: bool) -> bool:
        """Whether the request's rows are what they should be."""
        try:
            if self._repairer is None:
                raise EngineError("this worker lends no model for a repair; see --worker-cls")
            if not self._repairer.on_all_ranks(loaded):
                return False
            cartridge = self._loading.cartridge_for(order)
            done = self._repairer.repair(order, repair, cartridge)
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the engine
            logger.error("request %s cannot be repaired: %s", order.request_id, one_line(error))
            self.counts.add(repair_failures=1)
            return False
        self._repaired.append(done)
        self.counts.add(repaired_tokens=done.tokens, repairs_of_nothing=int(not done.tokens))
        return True

    def take_counts(self) -> RoutingStats | None:
        """The first rank's stand for all, which do the same; the engine would add them up."""
        taken = self.counts.take()
        return taken if self.rank.index == 0 else None

    def take_refused(self) -> set[str]:
        """Refused requests since this was last asked."""
        taken, self._refused = self._refused, set()
        return taken

    def take_failed_blocks(self) -> set[int]:
        """Blocks that were not written since this was last asked."""
        taken, self._failed_blocks = self._failed_blocks, set()
        return taken

    def take_report(self) -> WorkerReport | None:
        """What was repaired since this was last asked."""
        if not self._repaired:
            return None
        taken, self._repaired = tuple(self._repaired), []
        return WorkerReport(taken)
