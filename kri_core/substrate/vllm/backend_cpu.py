"""vLLM's CPU attention with absent rows dropped; the kernels are vLLM's own."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from kri_core.substrate.vllm.attention import CapturedImpl, CompactingBuilder, routed_spec


class RoutedCPUBuilder(CompactingBuilder, CPUAttentionMetadataBuilder):
    """Compacts, then builds as vLLM's."""


class RoutedCPUImpl(CapturedImpl, CPUAttentionBackendImpl):
    """Writes as vLLM's, unless a repair is running."""


class RoutedCPUBackend(CPUAttentionBackend):
    """Takes CPU_ATTN's place in vLLM's registry; its name must stay that one's."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:  # noqa: ANN401
        """16 too: the vec16 kernel takes it. vLLM lists 32, which AMX needs."""
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:  # noqa: ANN401
        """A routed spec where the layer is plain full attention."""
        return routed_spec(super().customize_spec(spec))

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Ours."""
        return RoutedCPUImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        """Ours."""
        return RoutedCPUBuilder
