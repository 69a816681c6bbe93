"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`)."""

from __future__ import annotations

HERE = "kri_core.substrate.vllm"
CONNECTOR = "CartridgeConnector"  # its name in the JSON that people write


def worker_class(is_cpu: bool) -> str:
    """What `--worker-cls` takes where requests are to be repaired."""
    return f"{HERE}.workers.Routed{'CPU' if is_cpu else 'GPU'}Worker"


def register() -> None:
    """Make the connector, the routed cache and the attention back ends known; may be repeated.

    The back ends take the places of vLLM's own, so that a server needs no flag to be routed.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from kri_core.substrate.vllm import placement

    placement.register()
    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, f"{HERE}.connector", CONNECTOR)
    if current_platform.is_cpu():
        register_backend(AttentionBackendEnum.CPU_ATTN, f"{HERE}.backend_cpu.RoutedCPUBackend")
    else:
        cuda = f"{HERE}.backend_cuda"
        register_backend(AttentionBackendEnum.FLASH_ATTN, f"{cuda}.RoutedFlashBackend")
        register_backend(AttentionBackendEnum.TRITON_ATTN, f"{cuda}.RoutedTritonBackend")
