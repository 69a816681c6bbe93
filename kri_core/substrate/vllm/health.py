"""What of an installed vLLM works, look by look; run in a process of its own (see cli/doctor)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from attrs import frozen

from kri_core.errors import EngineError, one_line
from kri_core.substrate.vllm.plugin import CONNECTOR, HERE, register, worker_class

PLUGIN = "kri_core"  # the entry point's name


@frozen
class Look:
    """One thing that was tried: what it showed, or why it failed."""

    name: str
    works: bool
    detail: str


def look() -> Iterator[Look]:
    """Up to the first that fails, as each needs those before it; any may end the process."""
    for name, trying in LOOKS.items():
        try:
            detail = trying()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is a finding
            yield Look(name, False, one_line(_root(error)))
            return
        yield Look(name, True, detail)


def _root(error: BaseException) -> BaseException:
    """What transformers, for one, says only at DEBUG."""
    return error if error.__cause__ is None else _root(error.__cause__)


def _import() -> str:
    import vllm
    from vllm.platforms import current_platform

    return f"vLLM {vllm.__version__} on {current_platform.device_type or 'no device'}"


def _models() -> str:
    """What every server imports; a torchvision built for another torch breaks it."""
    from transformers import LlamaForCausalLM

    return f"{LlamaForCausalLM.__name__} and the like can be imported"


def _plugin() -> str:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    if CONNECTOR not in KVConnectorFactory._registry:
        named = os.environ.get("VLLM_PLUGINS")
        if named is not None and PLUGIN not in named.split(","):
            raise EngineError(f"VLLM_PLUGINS={named} leaves {PLUGIN} out")
        register()  # raises what vLLM has only logged
        raise EngineError(f"the entry point {PLUGIN} is not in this environment's metadata")
    return f"{PLUGIN}, which brings {CONNECTOR}"


def _inject() -> str:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    KVConnectorFactory.get_connector_class_by_name(CONNECTOR)
    return "whole cartridges are loaded, not computed"


def _routed() -> str:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    cuda = ("FLASH_ATTN", "TRITON_ATTN") if current_platform.is_cuda() else ()
    names = ("CPU_ATTN",) if current_platform.is_cpu() else cuda
    if not names:
        raise EngineError(
            f"no attention for {current_platform.device_type or 'this device'} drops absent "
            "blocks; serve on a CPU or with CUDA"
        )
    for name in names:
        found = AttentionBackendEnum[name].get_class()
        if not found.__module__.startswith(HERE):
            raise EngineError(f"{name} is {found.__module__}.{found.__name__}, not kri-core's")
    return f"blocks that are not selected are absent ({', '.join(names)})"


def _repair() -> str:
    from vllm.platforms import current_platform

    from kri_core.substrate.vllm import workers

    flag = worker_class(current_platform.is_cpu())
    getattr(workers, flag.rpartition(".")[2])
    return f"with --worker-cls {flag}, as kri-core serve gives it"


LOOKS: Mapping[str, Callable[[], str]] = {
    "import": _import,
    "models": _models,
    "plugin": _plugin,
    "dense-inject": _inject,
    "routed": _routed,
    "repair": _repair,
}
