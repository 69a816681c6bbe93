"""What the worker tells the scheduler's process after a step."""

from __future__ import annotations

from attrs import frozen
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from kri_core.substrate.vllm.orders import Repaired


@frozen
class WorkerReport(KVConnectorWorkerMetadata):
    """Of one worker; all ranks do the same, so the first one's stands for all."""

    repaired: tuple[Repaired, ...]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Of several ranks."""
        return self
