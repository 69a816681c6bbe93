"""From KV tensors to a cartridge: laid out by blocks, hashed, addressed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kri_core.artifacts.tensors import KV_DTYPES, bytes_of, dtype_name, plain
from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity, canonical_json, prefix_hash
from kri_core.types import Cartridge, Layout

if TYPE_CHECKING:
    from torch import Tensor


def block_major(
    layers: Iterable[tuple[Tensor, Tensor]], num_layers: int, block_size: int
) -> tuple[Tensor, Tensor]:
    """Each layer's keys and values, [kv_head, token, head_dim], as a cartridge's kv and tail.

    Takes one layer at a time, so a generator keeps the peak at the result plus one layer.
    """
    import torch

    kv = tail = torch.empty(0)
    first: Tensor | None = None
    for layer, pair in enumerate(layers):
        for side, tensor in enumerate(pair):
            if first is None:
                first = tensor
                heads, tokens, head_dim = tensor.shape
                whole = tokens // block_size * block_size
                shape = (num_layers, 2, heads, block_size, head_dim)
                kv = torch.empty(tokens // block_size, *shape, dtype=tensor.dtype)
                tail = kv.new_empty(num_layers, 2, heads, tokens - whole, head_dim)
            _check_alike(tensor, first, f"layer {layer}'s {('keys', 'values')[side]}")
            blocks = tensor[:, :whole].reshape(heads, -1, block_size, head_dim)
            kv[:, layer, side] = blocks.transpose(0, 1)  # [block, kv_head, token, head_dim]
            tail[layer, side] = tensor[:, whole:]
    return kv, tail


def _check_alike(tensor: Tensor, first: Tensor, name: str) -> None:
    """An assignment would broadcast one head over many and cast in silence."""
    if tensor.shape != first.shape or tensor.dtype != first.dtype:
        raise ArtifactError(
            f"{name} are {dtype_name(tensor)} {list(tensor.shape)}, layer 0's keys "
            f"{dtype_name(first)} {list(first.shape)}; all layers must be alike"
        )


def seal(
    cart_id: str,
    block_size: int,
    model: ModelIdentity,
    token_ids: Sequence[int],
    kv: Tensor,
    tail: Tensor,
    trained: bool = False,
) -> Cartridge:
    """Check and hash KV in a cartridge's axes; the tensors are kept, not copied, if contiguous.

    Empty `token_ids` says that they are not known: nothing can then be prefilled again, and the
    cartridge goes by its content, not by its tokens.
    """
    kv = plain("kv", kv).cpu().contiguous()
    tail = plain("tail", tail).cpu().contiguous()
    layout = _layout_of(kv, tail, block_size)
    if any(token < 0 for token in token_ids):
        raise ArtifactError(f"token ids must not be negative; got {min(token_ids)}")
    check_finite(kv, tail)
    sha256 = payload_sha256(token_ids, kv, tail)
    return Cartridge(
        cart_id=cart_id,
        layout=layout,
        model=model,
        token_ids=tuple(token_ids),
        kv=kv,
        tail=tail,
        trained=trained,
        sha256=sha256,
        prefix_hash=address(model, block_size, dtype_name(kv), token_ids, trained, sha256),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _layout_of(kv: Tensor, tail: Tensor, block_size: int) -> Layout:
    """Sizes from the tensors; Cartridge checks all axes against them."""
    if kv.ndim != 6 or tail.ndim != 5:
        raise ArtifactError(
            "kv must be [block, layer, 2, kv_head, token, head_dim] and tail [layer, 2, kv_head, "
            f"token, head_dim]; got {list(kv.shape)} and {list(tail.shape)}"
        )
    if dtype_name(kv) not in KV_DTYPES:
        raise ArtifactError(f"kv must be one of {', '.join(KV_DTYPES)}; got {dtype_name(kv)}")
    num_tokens = kv.shape[0] * block_size + tail.shape[3]
    if num_tokens == 0:
        raise ArtifactError("a cartridge of zero tokens holds nothing; give it a longer text")
    return Layout(kv.shape[1], kv.shape[3], kv.shape[5], block_size, num_tokens)


def check_finite(kv: Tensor, tail: Tensor) -> None:
    """Refuse NaN and infinity, which a cast to float16 can make; block by block."""
    for name, part in (*((f"block {b}", block) for b, block in enumerate(kv)), ("tail", tail)):
        if not _is_finite(part):
            raise ArtifactError(
                f"KV of {name} holds NaN or infinity; build it again, in bfloat16 or float32 if "
                "it was float16"
            )


def _is_finite(part: Tensor) -> bool:
    """A finite sum proves it, at a fifteenth of isfinite's time; it may overflow, hence both."""
    import torch

    total = part.sum(dtype=torch.promote_types(part.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(part).all())


def payload_sha256(token_ids: Sequence[int], kv: Tensor, tail: Tensor) -> str:
    """sha256 over dtype, shapes, token ids (int64) and KV; the same in both file formats.

    Hashes mapped pages in place: no second copy of contiguous KV.
    """
    import torch

    shapes = [dtype_name(kv), list(kv.shape), list(tail.shape)]
    found = hashlib.sha256(canonical_json(shapes).encode())
    for part in (torch.tensor(list(token_ids), dtype=torch.int64), kv, tail):
        found.update(bytes_of(part))
    return found.hexdigest()


def address(
    model: ModelIdentity,
    block_size: int,
    dtype: str,
    token_ids: Sequence[int],
    trained: bool,
    sha256: str,
) -> str:
    """prefix_hash: over the token ids where a prefill of them gives this KV, else over the KV."""
    by_tokens = len(token_ids) > 0 and not trained
    return prefix_hash(model, block_size, dtype, token_ids if by_tokens else sha256)
