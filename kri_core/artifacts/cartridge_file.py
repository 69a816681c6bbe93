"""Cartridges on disk: a header in JSON, token ids, and KV block by block.

Reading maps the file: a block's KV is read when it is looked at, and no other block's is. The file
may be replaced meanwhile (as write_cartridge does), but must not be overwritten in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kri_core.artifacts.contents import read_fields, read_texts, write_fields
from kri_core.artifacts.header import CartridgeHeader
from kri_core.artifacts.opening import naming
from kri_core.artifacts.sealing import address, check_finite, payload_sha256
from kri_core.artifacts.tensors import dtype_name, plain
from kri_core.errors import ArtifactError
from kri_core.paging import prefetch
from kri_core.types import Cartridge

FIELDS = {"header", "token_ids", "kv", "tail"}


def write_cartridge(cartridge: Cartridge, path: Path) -> None:
    """Write .safetensors or .pt by suffix, whole or not at all; holds no second copy of the KV."""
    import torch

    texts = {"header": CartridgeHeader.of(cartridge).to_text()}
    token_ids = torch.tensor(cartridge.token_ids, dtype=torch.int64)
    tensors = {"token_ids": token_ids, "kv": cartridge.kv, "tail": cartridge.tail}
    with naming(path):
        write_fields(path, texts, tensors)


def read_cartridge(path: Path) -> Cartridge:
    """Map a cartridge; its cart_id is the file's name without suffix, its dtype stays as it is."""
    with naming(path):
        fields = read_fields(path)
        return _assemble(path.stem, CartridgeHeader.parse(fields), fields)


def read_cartridge_header(path: Path) -> CartridgeHeader:
    """What the file says of itself; none of its KV is read."""
    with naming(path):
        return CartridgeHeader.parse(read_texts(path))


def verify_cartridge(path: Path) -> Cartridge:
    """Read every byte and compare with what the header says of it."""
    cartridge = read_cartridge(path)
    with naming(path):
        check_finite(cartridge.kv, cartridge.tail)
        sha256 = payload_sha256(cartridge.token_ids, cartridge.kv, cartridge.tail)
        _compare("sha256", sha256, cartridge.sha256)
        found = address(
            cartridge.model,
            cartridge.layout.block_size,
            dtype_name(cartridge.kv),
            cartridge.token_ids,
            cartridge.trained,
            sha256,
        )
        _compare("prefix_hash", found, cartridge.prefix_hash)
    return cartridge


def _compare(name: str, found: str, recorded: str) -> None:
    if found != recorded:
        raise ArtifactError(
            f"{name} of its contents is {found}, its header says {recorded}: "
            "it was changed or damaged; build or copy it again"
        )


def _assemble(cart_id: str, header: CartridgeHeader, fields: Mapping[str, object]) -> Cartridge:
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        raise ArtifactError(f"has unknown fields {', '.join(unknown)}; build it again")
    tensors = {name: plain(name, fields.get(name)) for name in ("token_ids", "kv", "tail")}
    for name, wanted in (("token_ids", "int64"), ("kv", header.dtype), ("tail", header.dtype)):
        found = dtype_name(tensors[name])
        if found != wanted:
            raise ArtifactError(f"{name} is {found}, its header says {wanted}; build it again")
    prefetch((tensors["token_ids"], tensors["tail"]))  # of the KV, only the tail is always read
    return Cartridge(
        cart_id=cart_id,
        layout=header.layout,
        model=header.model,
        token_ids=tuple(tensors["token_ids"].reshape(-1).tolist()),
        kv=tensors["kv"],
        tail=tensors["tail"],
        trained=header.trained,
        sha256=header.sha256,
        prefix_hash=header.prefix_hash,
        created_at=header.created_at,
    )
