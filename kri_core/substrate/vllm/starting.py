"""Both sides of the connector, made when the engine starts; whatever is wrong is said there."""

from __future__ import annotations

from functools import partial
from typing import Any

from kri_core.artifacts import check_model
from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity
from kri_core.substrate.vllm.layer_zero import LayerZero
from kri_core.substrate.vllm.loading import Rank
from kri_core.substrate.vllm.model_identity import served_identity, token_text
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.reblocking import routing_block_size
from kri_core.substrate.vllm.repair_checks import why_no_repair
from kri_core.substrate.vllm.scheduling import Dispatcher
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf
from kri_core.substrate.vllm.trace import Trace
from kri_core.substrate.vllm.working import Worker
from kri_core.types import Cartridge


def dispatcher_of(settings: Settings, vllm_config: Any) -> Dispatcher:  # noqa: ANN401
    """The scheduler's side; refuses a cartridge the served model did not make."""
    block_size = vllm_config.cache_config.block_size
    model = vllm_config.model_config
    identity = served_identity(model, vllm_config.load_config)
    shape = _shape(vllm_config)
    shelf = Shelf.of(settings.cartridges, block_size, partial(_check, identity, shape, block_size))
    planner = Planner(
        settings,
        shelf,
        block_size,
        dtype=str(model.dtype),
        text_of=token_text(model),
        probe_of=LayerZero(model, vllm_config.load_config).probe,
        cannot_repair=why_no_repair(vllm_config),
    )
    planner.check_offers()
    trace = None if settings.trace is None else Trace(settings.trace)
    return Dispatcher(planner, trace)


def worker_of(settings: Settings, vllm_config: Any) -> Worker:  # noqa: ANN401
    """A rank's side; it looks at every cartridge now, or one would be imported within a step."""
    block_size = vllm_config.cache_config.block_size
    parallel = vllm_config.parallel_config
    shelf = Shelf.of(settings.cartridges, block_size, lambda _: None)
    rank = Rank(parallel.rank % parallel.tensor_parallel_size, parallel.tensor_parallel_size)
    return Worker(shelf.get, rank, block_size, Overlays(shelf.entries))


def _shape(vllm_config: Any) -> tuple[int, int, int]:  # noqa: ANN401
    model = vllm_config.model_config
    return (
        model.get_num_layers(vllm_config.parallel_config),
        model.get_total_num_kv_heads(),
        model.get_head_size(),
    )


def _check(
    identity: ModelIdentity, shape: tuple[int, int, int], block_size: int, cartridge: Cartridge
) -> None:
    check_model(cartridge, identity)
    layout = cartridge.layout
    found = (layout.num_layers, layout.num_kv_heads, layout.head_dim)
    if found != shape:
        raise ArtifactError(
            f"cartridge {cartridge.cart_id!r} has (layers, KV heads, head_dim) {found}, the served "
            f"model has {shape}; serve the model it was built with"
        )
    routing_block_size(cartridge, block_size)
