"""What vLLM sees of routing: its connector interface, answered by `scheduling` and `loading`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import uuid4

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.placement import bind
from kri_core.substrate.vllm.reporting import OrdersMetadata, WorkerReport
from kri_core.substrate.vllm.scheduling import REFUSED_TOKENS, Dispatcher
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.starting import dispatcher_of, worker_of
from kri_core.substrate.vllm.stats import RoutingMetrics, RoutingStats
from kri_core.substrate.vllm.support import check_alone, check_engine, check_layers
from kri_core.substrate.vllm.working import Worker


class CartridgeConnector(KVConnectorBase_V1, SupportsHMA):
    """Serves prompts that start with a cartridge from the blocks that a stack selects."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:  # noqa: ANN401
        super().__init__(vllm_config, role, kv_cache_config)
        check_engine(vllm_config, kv_cache_config)
        extra = cast(Mapping[str, object], self._kv_transfer_config.kv_connector_extra_config)
        settings = Settings.parse(extra)
        self._dispatcher: Dispatcher | None = None
        self._worker: Worker | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._dispatcher = dispatcher_of(settings, vllm_config)
        else:
            self._worker = worker_of(settings, vllm_config)

    @property
    def dispatcher(self) -> Dispatcher:
        """The scheduler's side."""
        assert self._dispatcher is not None  # noqa: S101 - vLLM asks the side it made
        return self._dispatcher

    @property
    def worker(self) -> Worker:
        """The worker's side."""
        assert self._worker is not None  # noqa: S101 - vLLM asks the side it made
        return self._worker

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is handed on: a preempted request may end as any other."""
        return False

    # The scheduler's side

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:  # noqa: ANN401
        """Give the managers the plans they place blocks by."""
        super().bind_kv_cache_manager(kv_cache_manager)
        bind(kv_cache_manager, self.dispatcher)

    def on_new_request(self, request: Any) -> None:  # noqa: ANN401
        """Plan it; a routed one's prefix gets a name that no other has, and no client can guess."""
        asked = Asked.by(request)
        plan = self.dispatcher.arrive(asked)
        refused = self.dispatcher.is_refused(asked.request_id)
        if refused:  # else vLLM would not wait for KV that is to fail, and serve it dense
            request.skip_reading_prefix_cache = False
        if plan is not None or refused:
            request.cache_salt = f"kri_core:{uuid4().hex}"
            request.block_hashes.clear()
            request.update_block_hashes()

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ANN401
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """A look-up, however often it is asked."""
        plan = self.dispatcher.plan_of(request.request_id)
        if plan is not None:
            return plan.num_tokens - num_computed_tokens, False
        if self.dispatcher.is_refused(request.request_id):
            return REFUSED_TOKENS, True
        return 0, False

    def update_state_after_alloc(
        self,
        request: Any,  # noqa: ANN401
        blocks: Any,  # noqa: ANN401
        num_external_tokens: int,
    ) -> None:
        """The rows of a plan were ordered when they were placed; a refusal is ordered here."""
        if num_external_tokens and self.dispatcher.is_refused(request.request_id):
            self.dispatcher.turn_away(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:  # noqa: ANN401
        """This step's orders."""
        return OrdersMetadata(self.dispatcher.take_orders())

    def update_connector_output(self, connector_output: Any) -> None:  # noqa: ANN401
        """What the worker reports; a row that was not written is found by no later request.

        vLLM forgets those of running requests: whose was aborted or preempted meanwhile is not one.
        """
        self._kv_cache_manager.evict_blocks(connector_output.invalid_block_ids)
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            for done in report.repaired:
                self.dispatcher.repaired(done)

    def request_finished(
        self,
        request: Any,  # noqa: ANN401
        block_ids: list[int],
    ) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks may go at once; the response says what was routed."""
        said = self.dispatcher.finish(request.request_id)
        return False, None if said is None else {"kri": said}

    def request_finished_all_groups(
        self,
        request: Any,  # noqa: ANN401
        block_ids: tuple[list[int], ...],
    ) -> tuple[bool, dict[str, Any] | None]:
        """There is one group."""
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def get_block_skip_list(self, req_id: str, num_logical_blocks: int) -> list[int]:
        """The blocks of a live request's cartridge it does not attend to, ascending (DESIGN 8)."""
        plan = self.dispatcher.plan_of(req_id)
        kept = set(range(num_logical_blocks)) if plan is None else set(plan.kept)
        return [block for block in range(num_logical_blocks) if block not in kept]

    # The worker's side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The caches exist now, and so do the layers that write them."""
        context = self._vllm_config.compilation_config.static_forward_context
        layers = {name: context[name] for name in kv_caches}
        check_alone(self)
        check_layers(layers)
        self.worker.use(layers)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Carry out the step's orders, before its forward."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, OrdersMetadata)  # noqa: S101 - as we built it
        self.worker.carry_out(metadata.orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are complete when `start_load_kv` returns."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: Any,  # noqa: ANN401
        attn_metadata: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Refused requests: their KV was waited for and will not come."""
        gone = self.worker.take_refused()
        return KVConnectorTransferResults(finished_recving=gone, failed_recving=set(gone))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were not written; whoever holds one ends in an error."""
        return self.worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """What the scheduler's side is to know."""
        return self.worker.take_report()

    # Both sides

    def get_kv_connector_stats(self) -> RoutingStats | None:
        """This side's counters since they were last asked for."""
        worker = self._worker
        return self.dispatcher.counts.take() if worker is None else worker.take_counts()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> RoutingStats:
        """From their plain numbers."""
        return RoutingStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> RoutingMetrics:  # noqa: ANN401
        """Their Prometheus counters."""
        return RoutingMetrics(*args)
