"""vLLM's CPU attention with absent rows dropped; the kernels are vLLM's own."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from kri_core.substrate.vllm.capture import captured
from kri_core.substrate.vllm.compaction import Compacted, any_absent
from kri_core.substrate.vllm.placement import RoutedFullAttentionSpec
from kri_core.substrate.vllm.specs import routed_spec


class RoutedCPUBuilder(CPUAttentionMetadataBuilder):
    """Compacts a step's block table where some row of it is absent."""

    _compacted: Compacted | None = None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CPUAttentionMetadata:
        """As vLLM's, over the rows that are there."""
        step = common_attn_metadata
        table, seq_lens = step.block_table_tensor, step.seq_lens
        if isinstance(self.kv_cache_spec, RoutedFullAttentionSpec) and any_absent(
            table, seq_lens, self.block_size
        ):
            query_lens = step.query_start_loc[1:] - step.query_start_loc[:-1]
            held = self._room(table)
            rows, lengths = held.fill(table, seq_lens, query_lens, self.block_size)
            step = step.replace(
                block_table_tensor=rows.contiguous(),
                seq_lens=lengths,
                max_seq_len=int(lengths.max()),
            )
        return super().build(common_prefix_len, step, fast_build)

    def _room(self, table: Any) -> Compacted:  # noqa: ANN401 - a tensor
        if self._compacted is None or not self._compacted.holds(table):
            count = max(table.shape[0], self.vllm_config.scheduler_config.max_num_seqs)
            self._compacted = Compacted.for_requests(count, table.shape[1], table.device)
        return self._compacted


class RoutedCPUImpl(CPUAttentionBackendImpl):
    """Lets a repair see and change what a layer is about to write."""

    def do_kv_cache_update(self, layer: Any, *args: Any) -> None:  # noqa: ANN401
        """As vLLM's, of what a running repair leaves to be written."""
        key, value, cache, slots = args
        written = captured(layer, key, value, slots)
        if written is not None:
            super().do_kv_cache_update(layer, *written[:2], cache, written[2])


class RoutedCPUBackend(CPUAttentionBackend):
    """Takes CPU_ATTN's place in vLLM's registry; its name must stay that one's."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:  # noqa: ANN401
        """16 too: the vec16 kernel takes it. vLLM lists 32, which AMX needs."""
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:  # noqa: ANN401
        """A routed spec where this server routes and the layer is plain full attention."""
        return routed_spec(super().customize_spec(spec))

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Ours."""
        return RoutedCPUImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        """Ours."""
        return RoutedCPUBuilder
