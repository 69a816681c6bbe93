"""Workers for `--worker-cls`: vLLM's own, which also lend their model runner for repairs (ADR 8).

Nothing else of a server reaches the loaded model from a connector.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from kri_core.substrate.vllm.connector import CartridgeConnector

BASES = {  # imported on first use: the one platform's may not import on the other
    "RoutedCPUWorker": ("vllm.v1.worker.cpu_worker", "CPUWorker"),
    "RoutedGPUWorker": ("vllm.v1.worker.gpu_worker", "Worker"),
}


class LendsRunner:
    """Put before a platform's worker."""

    model_runner: Any

    def initialize_from_config(self, kv_cache_config: Any) -> None:  # noqa: ANN401
        """As vLLM's; then the model, the caches and the connector are all there."""
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        group = get_kv_transfer_group() if has_kv_transfer_group() else None
        if isinstance(group, CartridgeConnector):
            group.worker.lend(self.model_runner)


def __getattr__(name: str) -> type:
    if name not in BASES:
        raise AttributeError(f"module {__name__!r} has no {name!r}; it has {', '.join(BASES)}")
    module, base = BASES[name]
    made = type(name, (LendsRunner, getattr(import_module(module), base)), {"__module__": __name__})
    globals()[name] = made
    return made
