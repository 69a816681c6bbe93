"""What a server is not started with (CASES 35): each refused by its name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from kri_core.errors import EngineError
from kri_core.substrate.vllm.attention import routed_spec
from kri_core.substrate.vllm.placement import RoutedFullAttentionSpec, bind
from kri_core.substrate.vllm.support import check_alone, check_engine, check_layers

SIZES = {"block_size": 16, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
ROUTED = RoutedFullAttentionSpec(**SIZES)


def fake_config(**changed):
    """As much of a VllmConfig as is looked at; `parallel__x=1` changes its parallel_config.x."""
    config = SimpleNamespace(
        speculative_config=None,
        kv_events_config=None,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        model_config=SimpleNamespace(is_mm_prefix_lm=False),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"),
    )
    for path, value in changed.items():
        *parts, last = path.split("__")
        held = config
        for part in parts:
            held = getattr(held, f"{part}_config")
        setattr(held, last, value)
    return config


def fake_groups(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def test_plain_full_attention_on_one_rank_is_served():
    check_engine(fake_config(), fake_groups(ROUTED))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"speculative_config": object()}, "speculative decoding"),
        ({"parallel__decode_context_parallel_size": 2}, "decode context parallel"),
        ({"parallel__prefill_context_parallel_size": 2}, "prefill context parallel"),
        ({"parallel__pipeline_parallel_size": 2}, "pipeline parallel"),
        ({"cache__cache_dtype": "fp8"}, r"a quantised KV cache \(fp8\)"),
        ({"model__is_mm_prefix_lm": True}, "bidirectional ranges of multi-modal prefixes"),
        (
            {"kv_events_config": SimpleNamespace(enable_kv_cache_events=True)},
            "KV cache events",
        ),
        (
            {"kv_transfer__kv_load_failure_policy": "recompute"},
            "kv_load_failure_policy=recompute",
        ),
    ],
)
def test_what_routing_is_not_exact_with_is_refused_by_its_name(changed, name):
    with pytest.raises(EngineError, match=f"routing is not exact with {name}"):
        check_engine(fake_config(**changed), fake_groups(ROUTED))


@pytest.mark.parametrize(
    ("specs", "found"),
    [
        ([FullAttentionSpec(**SIZES)], "FullAttentionSpec"),  # our plugin was not loaded
        ([SlidingWindowSpec(**SIZES, sliding_window=64)], "SlidingWindowSpec"),
        ([MLAAttentionSpec(**SIZES | {"num_kv_heads": 1})], "MLAAttentionSpec"),
        (
            [ROUTED, SlidingWindowSpec(**SIZES, sliding_window=64)],
            "RoutedFullAttentionSpec, SlidingWindowSpec",
        ),
        ([ROUTED, ROUTED], "RoutedFullAttentionSpec, RoutedFullAttentionSpec"),
        ([], "none"),
    ],
)
def test_any_other_cache_than_one_group_of_full_attention_is_refused(specs, found):
    with pytest.raises(EngineError, match=f"one KV cache group .* this model has {found} "):
        check_engine(fake_config(), fake_groups(*specs))


@pytest.mark.parametrize(
    ("attribute", "value", "line"),
    [
        ("alibi_slopes", torch.ones(4), "not exact with ALiBi"),
        ("sinks", torch.ones(4), "not been tested with attention sinks"),
        ("kv_sharing_target_layer_name", "layer.0", "not been tested with shared KV layers"),
    ],
)
def test_what_only_a_layer_shows_is_refused_with_the_layer(attribute, value, line):
    layer = SimpleNamespace(impl=SimpleNamespace(**{attribute: value}))

    with pytest.raises(EngineError, match=rf"{line} \(layer model.layers.3\)"):
        check_layers({"model.layers.3": layer})


@pytest.mark.parametrize(
    "spec",
    [
        FullAttentionSpec(**SIZES, sliding_window=64),
        FullAttentionSpec(**SIZES, attention_chunk_size=64),
        SlidingWindowSpec(**SIZES, sliding_window=64),
    ],
)
def test_only_plain_full_attention_becomes_a_routed_cache(spec):
    assert routed_spec(spec) is spec
    assert routed_spec(FullAttentionSpec(**SIZES)) == ROUTED


def test_a_server_of_a_sliding_window_model_does_not_start(shop, start, tmp_path_factory):
    """The real thing: Mistral with a window of 64 tokens."""
    from kri_core.testing.tiny import save_tiny

    folder = tmp_path_factory.mktemp("mistral")
    path = save_tiny(folder, "Mistral", head_dim=32, hidden_size=64, sliding_window=64)
    with pytest.raises(EngineError, match="one KV cache group"), start(model=str(path)):
        pass


def test_a_server_with_the_connector_among_others_does_not_start(extra, start):
    """The real thing: another connector would keep what was computed after absent blocks."""
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    inner = {"kv_connector": "CartridgeConnector", "kv_role": "kv_both"}
    outer = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": [inner | {"kv_connector_extra_config": extra}]},
    )
    line = "not exact inside a MultiConnector; give CartridgeConnector alone"
    try:
        with pytest.raises(EngineError, match=line), start(kv_transfer_config=outer):
            pass
    finally:
        ensure_kv_transfer_shutdown()  # or the next engine would be given these connectors


def test_a_connector_that_no_engine_has_yet_is_alone():
    check_alone(object())


def test_an_engine_whose_cache_is_not_routed_has_no_place_for_plans():
    """Its blocks would be real ones that nothing loads."""
    coordinator = SimpleNamespace(single_type_managers=[object()])

    with pytest.raises(EngineError, match=r"has a object, routing needs its own; .* VLLM_PLUGINS"):
        bind(SimpleNamespace(coordinator=coordinator), None)


@pytest.mark.parametrize("name", ["Flash", "Triton"])
def test_the_gpu_back_ends_compact_before_they_build(name):
    """What can be said of them without a GPU; they have not been run on one."""
    from kri_core.substrate.vllm import backend_cuda
    from kri_core.substrate.vllm.attention import CapturedImpl, CompactingBuilder

    backend = getattr(backend_cuda, f"Routed{name}Backend")
    builder, impl = backend.get_builder_cls(), backend.get_impl_cls()

    assert builder.__mro__.index(CompactingBuilder) == 1
    assert impl.__mro__.index(CapturedImpl) == 1
    assert not builder.supports_update_block_table
    assert backend.customize_spec(FullAttentionSpec(**SIZES)) == ROUTED
    assert backend.get_name() in ("FLASH_ATTN", "TRITON_ATTN")
