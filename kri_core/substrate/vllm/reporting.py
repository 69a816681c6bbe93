"""What travels with each step: orders to the worker's process, and its report back."""

from __future__ import annotations

from attrs import frozen
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kri_core.substrate.vllm.orders import Orders, Repaired


@frozen
class OrdersMetadata(KVConnectorMetadata):
    """A step's orders."""

    orders: Orders


@frozen
class WorkerReport(KVConnectorWorkerMetadata):
    """Of one worker; all ranks do the same, so the first one's stands for all."""

    repaired: tuple[Repaired, ...]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Of several ranks."""
        return self
