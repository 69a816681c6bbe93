"""Which layers can be routed."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from kri_core.substrate.vllm.placement import RoutedFullAttentionSpec


def routed_spec(spec: Any) -> Any:  # noqa: ANN401 - vLLM's spec, whatever it is
    """A plain full-attention spec as a routed one, any other as it is.

    Without our connector no request has a plan, and the routed cache behaves as vLLM's own.
    """
    plain = (
        type(spec) is FullAttentionSpec
        and spec.sliding_window is None
        and spec.attention_chunk_size is None
    )
    return RoutedFullAttentionSpec.of(spec) if plain else spec
