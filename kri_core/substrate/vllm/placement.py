"""Where the rows of a routed request go in the engine's cache, and that no one else takes them.

The engine asks a manager for blocks; ours gives real ones to the rows that are there and the null
block to the rest, which are never allocated, not even for a moment. Rows of cartridges are shared
under a hash of their content. What is computed after a routed prefix is never published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, cast

from attrs import frozen
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from kri_core.errors import EngineError
from kri_core.substrate.vllm.orders import Plan, Row


class Plans(Protocol):
    """Who knows the plan of a request: the scheduler's side of the connector."""

    def plan_of(self, request_id: str) -> Plan | None:
        """None of a request that is not routed."""

    def placed(self, request_id: str, missing: tuple[Row, ...], resident: int) -> None:
        """The rows that have to be loaded before the next forward; the others are there."""


@dataclass(frozen=True, kw_only=True)
class RoutedFullAttentionSpec(FullAttentionSpec):
    """Full attention whose rows may be absent: only `RoutedManager` and our builders know how."""

    @classmethod
    def of(cls, spec: FullAttentionSpec) -> RoutedFullAttentionSpec:
        """The same cache, routed."""
        values = {field.name: getattr(spec, field.name) for field in fields(spec) if field.init}
        return cls(**values)


@frozen
class Published:
    """What `BlockPool.cache_full_blocks` reads of a request: one hash per block."""

    block_hashes: list[BlockHash]


class RoutedManager(FullAttentionManager):
    """vLLM's own manager for every request without a plan."""

    plans: Plans | None = None  # set once the connector is bound

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        *args: Any,  # noqa: ANN401 - passed through
        **kwargs: Any,  # noqa: ANN401
    ) -> int:
        """Without the rows that are absent, and those that others hold already."""
        count = super().get_num_blocks_to_allocate(
            request_id, num_tokens, new_computed_blocks, *args, **kwargs
        )
        plan = self._plan(request_id)
        if plan is None or request_id in self.num_cached_block:
            return int(count)
        held = sum(1 for block in self._resident(plan).values() if block.ref_cnt > 0)
        return max(int(count) - (plan.num_rows - len(plan.rows)) - held, 0)

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Real blocks for the plan's rows, the null block elsewhere."""
        plan = self._plan(request_id)
        if plan is None:
            super().allocate_external_computed_blocks(
                request_id, num_local_computed_tokens, num_external_computed_tokens, *args, **kwargs
            )
            return
        if num_local_computed_tokens or num_external_computed_tokens != plan.num_tokens:
            raise RuntimeError(
                f"request {request_id} was planned for {plan.num_tokens} tokens of cartridge "
                f"{plan.cart_id!r}, the engine places {num_local_computed_tokens} + "
                f"{num_external_computed_tokens}"
            )
        resident = self._resident(plan)
        self.block_pool.touch(list(resident.values()))  # before new ones could evict them
        missing = [row for row in plan.rows if row not in resident]
        fresh = dict(zip(missing, self.block_pool.get_new_blocks(len(missing)), strict=True))
        placed = resident | fresh
        self.req_to_blocks[request_id].extend(
            placed.get(row, self._null_block) for row in range(plan.num_rows)
        )
        self._publish(plan, fresh)
        rows = tuple(_row(plan, row, block.block_id) for row, block in fresh.items())
        cast(Plans, self.plans).placed(request_id, rows, len(resident))

    def cache_blocks(self, request: Request, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Nothing that was computed after a routed prefix may be found by another request."""
        if self._plan(request.request_id) is None:
            super().cache_blocks(request, *args, **kwargs)

    def _plan(self, request_id: str) -> Plan | None:
        return None if self.plans is None else self.plans.plan_of(request_id)

    def _resident(self, plan: Plan) -> dict[int, KVCacheBlock]:
        """The shared rows that are in the cache, by row."""
        if not self.enable_caching:
            return {}
        found = {
            row: self.block_pool.get_cached_block(BlockHash(key), [self.kv_cache_group_id])
            for row, key in plan.shared
        }
        return {row: blocks[0] for row, blocks in found.items() if blocks}

    def _publish(self, plan: Plan, fresh: dict[int, KVCacheBlock]) -> None:
        """New shared rows, under the hash of what will be in them before anyone attends."""
        shared = [(row, key) for row, key in plan.shared if row in fresh]
        if self.enable_caching and shared:
            self.block_pool.cache_full_blocks(
                request=Published([BlockHash(key) for _, key in shared]),
                blocks=[fresh[row] for row, _ in shared],
                num_cached_blocks=0,
                num_full_blocks=len(shared),
                block_size=self.block_size,
                kv_cache_group_id=self.kv_cache_group_id,
            )


def bind(kv_cache_manager: Any, plans: Plans) -> None:  # noqa: ANN401
    """Give an engine's managers the plans they place blocks by."""
    for manager in kv_cache_manager.coordinator.single_type_managers:
        if not isinstance(manager, RoutedManager):
            raise EngineError(
                f"the engine's cache has a {type(manager).__name__}, routing needs its own; "
                "load the plugin kri_core (see VLLM_PLUGINS)"
            )
        manager.plans = plans


def _row(plan: Plan, row: int, block_id: int) -> Row:
    first = row * plan.block_size
    return Row(first, min(plan.block_size, plan.num_tokens - first), block_id)


def register() -> None:
    """Tell the engine which manager goes with the spec; may be called again."""
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(
        RoutedFullAttentionSpec, RoutedManager, uniform_type_base_spec=FullAttentionSpec
    )
