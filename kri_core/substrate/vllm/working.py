"""Carrying out a step's orders in the worker: loads, repairs, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from kri_core.substrate.vllm.loading import Loader, Rank
from kri_core.substrate.vllm.orders import LoadOrder, Orders, Repaired
from kri_core.substrate.vllm.reporting import WorkerReport
from kri_core.substrate.vllm.stats import Counts
from kri_core.types import Cartridge


@define(eq=False)
class Worker:
    """One rank's side of the connector."""

    cartridge_of: Callable[[str], Cartridge]
    rank: Rank
    block_size: int
    counts: Counts = field(factory=Counts)
    _loader: Loader | None = None
    _refused: set[str] = field(factory=set)
    _failed_blocks: set[int] = field(factory=set)
    _repaired: list[Repaired] = field(factory=list)

    def use(self, layers: Mapping[str, Any]) -> None:
        """The engine's attention layers, in the model's order."""
        self._loader = Loader(layers, self.cartridge_of, self.rank, self.block_size, self.counts)

    def carry_out(self, orders: Orders) -> None:
        """Every load of a step; one that fails leaves the others alone."""
        self._refused |= set(orders.refused)
        for order in orders.loads:
            self._load(order)

    def _load(self, order: LoadOrder) -> None:
        assert self._loader is not None  # noqa: S101 - vLLM registers the caches first
        if not self._loader.load(order):
            self._failed_blocks |= {row.block_id for row in order.rows}

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
