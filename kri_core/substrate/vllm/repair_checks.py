"""What a served request may ask of a repair; the rest is refused when it arrives, by its name."""

from __future__ import annotations

from typing import Any

from kri_core.errors import ConfigError
from kri_core.repairing import check_references, repair_params
from kri_core.routing import Router
from kri_core.substrate.vllm.plugin import worker_class
from kri_core.types import Cartridge

REPAIR_LIMIT = 4  # of one request: each is a forward that all others wait for


def why_no_repair(vllm_config: Any) -> str | None:  # noqa: ANN401
    """What keeps this server from repairing, and what to do; None where it can."""
    parallel = vllm_config.parallel_config
    flag = worker_class(vllm_config.device_config.device_type == "cpu")
    if parallel.worker_cls != flag:
        return f"its worker lends no model for one; start the server with --worker-cls {flag}"
    if vllm_config.lora_config is not None:
        return "it has LoRA adapters, which a repair's forward would mix up; serve without them"
    if parallel.data_parallel_size > 1:
        return "its ranks run in step, which a repair would break; serve without data parallel"
    if vllm_config.model_config.uses_mrope:
        return "its model's positions have several axes; leave the repair out"
    return None


def check_repairs(router: Router, cartridge: Cartridge, cannot: str | None) -> None:
    """Refuse a stack whose repairs this server cannot run, or this cartridge does not bear."""
    repairs = [(str(member.ref), repair_params(member.params)) for member in router.stack.repairs]
    if repairs and cannot is not None:
        raise ConfigError(f"{repairs[0][0]} cannot be run by this server: {cannot}")
    if len(repairs) > REPAIR_LIMIT:
        raise ConfigError(
            f"the stack has {len(repairs)} repairs, for each of which all other requests wait; "
            f"give at most {REPAIR_LIMIT}, or bake an overlay (kri-core bake-overlay)"
        )
    layers = cartridge.layout.num_layers
    for name, params in repairs:
        if params.reference != "routed":
            raise ConfigError(
                f"{name} compares with {params.reference!r}, and a server computes 'routed' alone; "
                "leave the reference out, or bake an overlay (kri-core bake-overlay)"
            )
        if params.check_layer >= layers:
            raise ConfigError(
                f"{name} checks layer {params.check_layer}, and the model's are 0 to {layers - 1}; "
                "give one of these"
            )
    check_references(cartridge, [params for _, params in repairs])
