"""What routing is not exact for, refused when the server starts, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from kri_core.errors import EngineError
from kri_core.substrate.vllm.placement import RoutedFullAttentionSpec


def check_engine(vllm_config: Any, kv_cache_config: Any) -> None:  # noqa: ANN401
    """Refuse a server whose attention or schedule routing would not be exact for."""
    for name in _unsupported(vllm_config):
        raise EngineError(f"routing is not exact with {name}; serve without it, or without routing")
    groups = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if len(groups) != 1 or not isinstance(groups[0], RoutedFullAttentionSpec):
        found = ", ".join(type(spec).__name__ for spec in groups) or "none"
        raise EngineError(
            f"routing needs one KV cache group of plain full attention, this model has {found} "
            "(sliding window, chunked, MLA, hybrid or Mamba layers, or the plugin kri_core was "
            "not loaded: see VLLM_PLUGINS); serve a full-attention model"
        )


def check_alone(connector: object) -> None:
    """Refuse to be one of several: another would keep routed KV as if it were a prefix's."""
    if has_kv_transfer_group() and (group := get_kv_transfer_group()) is not connector:
        raise EngineError(
            f"routing is not exact inside a {type(group).__name__}; give CartridgeConnector alone"
        )


def check_layers(layers: dict[str, Any]) -> None:
    """What only the attention layers themselves show."""
    for name, layer in layers.items():
        impl = layer.impl
        if getattr(impl, "alibi_slopes", None) is not None:
            raise EngineError(f"routing is not exact with ALiBi (layer {name})")
        if getattr(impl, "sinks", None) is not None:
            raise EngineError(f"routing has not been tested with attention sinks (layer {name})")
        if getattr(impl, "kv_sharing_target_layer_name", None) is not None:
            raise EngineError(f"routing has not been tested with shared KV layers (layer {name})")


def _unsupported(config: Any) -> Iterator[str]:  # noqa: ANN401
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    if config.speculative_config is not None:
        yield "speculative decoding"
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        yield "decode context parallel"
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        yield "prefill context parallel"
    if parallel.pipeline_parallel_size > 1:
        yield "pipeline parallel"
    if cache.cache_dtype not in ("auto", "bfloat16", "float16", "float32"):
        yield f"a quantised KV cache ({cache.cache_dtype})"
    if getattr(model, "is_mm_prefix_lm", False):
        yield "bidirectional ranges of multi-modal prefixes"
    events = getattr(config, "kv_events_config", None)
    if events is not None and events.enable_kv_cache_events:
        yield "KV cache events (routed blocks have no request's tokens to publish)"
    if config.kv_transfer_config.kv_load_failure_policy != "fail":
        yield "kv_load_failure_policy=recompute (it would compute over absent blocks)"
