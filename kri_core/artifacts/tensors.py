"""What a tensor must be to go into a file or come out of one, and its bytes without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

KV_DTYPES = ("float32", "bfloat16", "float16", "float64")


def dtype_name(tensor: Tensor) -> str:
    """`float32`, not `torch.float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensor: Tensor) -> memoryview:
    """The values as bytes, row-major; a view unless the tensor is strided or on a device."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def plain(name: str, value: object) -> Tensor:
    """Refuse what is not an ordinary dense tensor of real numbers with its values at hand."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise ArtifactError(f"{name} is a {type(value).__name__}, wanted a tensor; write it again")
    faults = (
        ("on the meta device: it has a shape but no values", value.is_meta),
        ("sparse; save it .to_dense()", value.layout != torch.strided),
        ("nested; save it padded or one by one", value.is_nested),
        ("quantised; save it .dequantize()d", value.is_quantized),
        ("complex, wanted real numbers", value.is_complex()),
    )
    fault = next((text for text, holds in faults if holds), None)
    if fault is not None:
        raise ArtifactError(f"{name} is {fault}")
    return value.detach()
