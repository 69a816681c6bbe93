"""Overlays on disk: the KV of one selection of a cartridge as a stack's repairs leave it.

Laid out like a cartridge, but with the kept blocks alone: what the selection leaves out is not in
the file, so an overlay cannot be served for another selection. It names the cartridge by sha256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import asdict, evolve, field, frozen

from kri_core.artifacts.contents import read_fields, read_texts, write_fields
from kri_core.artifacts.fields import structure
from kri_core.artifacts.opening import naming
from kri_core.artifacts.sealing import check_finite
from kri_core.artifacts.tensors import KV_DTYPES, bytes_of, dtype_name, plain
from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity, canonical_json
from kri_core.types import Cartridge, Layout, Manifest

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
FIELDS = {"overlay", "kv", "tail"}


@frozen
class OverlayHeader:
    """Everything of an overlay but its KV."""

    cartridge_sha256: str  # of the cartridge whose blocks these are
    stack: str  # canonical, scorer and repairs included
    kept: tuple[int, ...] = field()  # blocks of the cartridge, ascending
    refreshed_tokens: int  # made afresh by the repairs, each counted once
    layout: Layout  # of the whole cartridge
    model: ModelIdentity
    dtype: str = field()
    created_at: str
    sha256: str  # of all of the above but created_at, and of the KV
    format_version: int = FORMAT_VERSION

    @kept.validator
    def _check_kept(self, _attribute: object, kept: tuple[int, ...]) -> None:
        if any(before >= block for before, block in pairwise((-1, *kept))):
            raise ArtifactError(f"overlay.kept must be ascending blocks; got {str(kept)[:60]}")

    @dtype.validator
    def _check_dtype(self, _attribute: object, dtype: str) -> None:
        if dtype not in KV_DTYPES:
            raise ArtifactError(f"overlay.dtype must be one of {', '.join(KV_DTYPES)}; got {dtype}")

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> OverlayHeader:
        """The header among a file's fields."""
        text = fields.get("overlay")
        if not isinstance(text, str):
            held = ", ".join(sorted(map(str, fields))[:6]) or "nothing"
            raise ArtifactError(
                f"is not an overlay: it holds {held}; make one with kri-core bake-overlay"
            )
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError("has a header that is not JSON; bake the overlay again") from error
        version = data.get("format_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ArtifactError(
                f"is of overlay format {version}, this kri-core reads up to {FORMAT_VERSION}; "
                "upgrade kri-core"
            )
        return structure(cls, data, "overlay")


@frozen(eq=False)
class Overlay:
    """Repaired KV of one selection, usually mapped from a file."""

    header: OverlayHeader
    blocks: Tensor  # [kept block, layer, 2, kv_head, token, head_dim]
    tail: Tensor  # [layer, 2, kv_head, token, head_dim]

    def __attrs_post_init__(self) -> None:
        layout = self.layout
        heads = (layout.num_layers, 2, layout.num_kv_heads)
        wanted = (len(self.header.kept), *heads, layout.block_size, layout.head_dim)
        self._check("kv", self.blocks, wanted)
        self._check("tail", self.tail, (*heads, len(layout.tail), layout.head_dim))
        if self.header.kept and self.header.kept[-1] >= layout.num_blocks:
            raise ArtifactError(
                f"keeps block {self.header.kept[-1]} of a cartridge of {layout.num_blocks}; "
                "bake the overlay again"
            )

    def _check(self, name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != wanted or dtype_name(tensor) != self.header.dtype:
            raise ArtifactError(
                f"{name} is {dtype_name(tensor)} {list(tensor.shape)}, its header says "
                f"{self.header.dtype} {list(wanted)}; bake the overlay again"
            )

    @property
    def layout(self) -> Layout:
        """Of the whole cartridge: blocks and tokens keep their numbers."""
        return self.header.layout

    @property
    def kv(self) -> Mapping[int, Tensor]:
        """The kept blocks by number, [layer, 2, kv_head, token, head_dim]; no others."""
        return dict(zip(self.header.kept, self.blocks, strict=True))

    def serves(self, cartridge: Cartridge, manifest: Manifest) -> bool:
        """Whether it is this selection of this cartridge by this stack, and nothing else."""
        header = self.header
        return (header.cartridge_sha256, header.stack, header.kept) == (
            cartridge.sha256,
            manifest.stack,
            manifest.kept,
        )


def seal_overlay(
    cartridge: Cartridge, manifest: Manifest, refreshed_tokens: int, kv: Tensor, tail: Tensor
) -> Overlay:
    """Check and hash repaired KV in an overlay's axes."""
    check_finite(kv, tail)
    header = OverlayHeader(
        cartridge_sha256=cartridge.sha256,
        stack=manifest.stack,
        kept=manifest.kept,
        refreshed_tokens=refreshed_tokens,
        layout=cartridge.layout,
        model=cartridge.model,
        dtype=dtype_name(kv),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sha256="",
    )
    return Overlay(evolve(header, sha256=_sha256(header, (kv, tail))), kv, tail)


def write_overlay(overlay: Overlay, path: Path) -> None:
    """Write .safetensors or .pt by suffix, whole or not at all."""
    texts = {"overlay": canonical_json(asdict(overlay.header))}
    with naming(path):
        write_fields(path, texts, {"kv": overlay.blocks, "tail": overlay.tail})


def read_overlay(path: Path) -> Overlay:
    """Map an overlay; its KV is read when it is looked at."""
    with naming(path):
        fields = read_fields(path)
        header = OverlayHeader.parse(fields)
        if unknown := sorted(fields.keys() - FIELDS):
            raise ArtifactError(f"has unknown fields {', '.join(unknown)}; bake the overlay again")
        blocks, tail = (plain(name, fields.get(name)) for name in ("kv", "tail"))
        return Overlay(header, blocks, tail)


def is_overlay(path: Path) -> bool:
    """Whether a file says of itself that it is one."""
    with naming(path):
        return "overlay" in read_texts(path)


def verify_overlay(path: Path) -> Overlay:
    """Read every byte and compare with what the header says of it."""
    overlay = read_overlay(path)
    with naming(path):
        check_finite(overlay.blocks, overlay.tail)
        found = _sha256(overlay.header, (overlay.blocks, overlay.tail))
        if found != overlay.header.sha256:
            raise ArtifactError(
                f"sha256 of its contents is {found}, its header says {overlay.header.sha256}: "
                "it was changed or damaged; bake or copy it again"
            )
    return overlay


def _sha256(header: OverlayHeader, tensors: Sequence[Tensor]) -> str:
    """Over what is said of the KV and the KV: another selection's is another overlay."""
    said = asdict(evolve(header, sha256="", created_at=""))
    found = hashlib.sha256(canonical_json(said).encode())
    for tensor in tensors:
        found.update(bytes_of(tensor))
    return found.hexdigest()
