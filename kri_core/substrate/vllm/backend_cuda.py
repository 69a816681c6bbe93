"""vLLM's FlashAttention and Triton attention with absent rows dropped. NOT RUN ON A GPU YET.

Written from vLLM 0.32's source. The compacted tables keep one address per builder and are filled
with static shapes and without synchronisation, so that what vLLM's own builders allow of CUDA
graphs holds. `max_seq_len` stays the uncompacted one: an upper bound, as the kernels want it.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from kri_core.substrate.vllm.attention import CapturedImpl, CompactingBuilder, routed_spec


class RoutedFlashBuilder(CompactingBuilder, FlashAttentionMetadataBuilder):
    """Compacts, then builds as vLLM's."""


class RoutedFlashImpl(CapturedImpl, FlashAttentionImpl):
    """Writes as vLLM's, unless a repair is running."""


class RoutedFlashBackend(FlashAttentionBackend):
    """Takes FLASH_ATTN's place in vLLM's registry."""

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:  # noqa: ANN401 - vLLM's spec
        """A routed spec where the layer is plain full attention."""
        return routed_spec(super().customize_spec(spec))

    @staticmethod
    def get_impl_cls() -> type[FlashAttentionImpl]:
        """Ours."""
        return RoutedFlashImpl

    @staticmethod
    def get_builder_cls() -> type[FlashAttentionMetadataBuilder]:
        """Ours."""
        return RoutedFlashBuilder


class RoutedTritonBuilder(CompactingBuilder, TritonAttentionMetadataBuilder):
    """Compacts, then builds as vLLM's."""


class RoutedTritonImpl(CapturedImpl, TritonAttentionImpl):
    """Writes as vLLM's, unless a repair is running."""


class RoutedTritonBackend(TritonAttentionBackend):
    """Takes TRITON_ATTN's place in vLLM's registry."""

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:  # noqa: ANN401
        """A routed spec where the layer is plain full attention."""
        return routed_spec(super().customize_spec(spec))

    @staticmethod
    def get_impl_cls() -> type[TritonAttentionImpl]:
        """Ours."""
        return RoutedTritonImpl

    @staticmethod
    def get_builder_cls() -> type[TritonAttentionMetadataBuilder]:
        """Ours."""
        return RoutedTritonBuilder
