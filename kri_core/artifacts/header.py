"""What a cartridge file says of itself before any of its KV is looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime

from attrs import asdict, field, frozen

from kri_core.artifacts.fields import structure
from kri_core.artifacts.prior_file import KEYS as PRIOR_KEYS
from kri_core.artifacts.safetensors_file import ITEM_BYTES
from kri_core.artifacts.tensors import KV_DTYPES, dtype_name
from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity, canonical_json
from kri_core.types import Cartridge, Layout

FORMAT_VERSION = 1


@frozen
class CartridgeHeader:
    """Everything of a cartridge but its name, token ids and KV."""

    layout: Layout
    model: ModelIdentity
    dtype: str = field()
    trained: bool
    created_at: str = field()
    sha256: str = field()
    prefix_hash: str = field()
    format_version: int = FORMAT_VERSION

    @dtype.validator
    def _check_dtype(self, _attribute: object, dtype: str) -> None:
        if dtype not in KV_DTYPES:
            raise ArtifactError(f"header.dtype must be one of {', '.join(KV_DTYPES)}; got {dtype}")

    @created_at.validator
    def _check_time(self, _attribute: object, created_at: str) -> None:
        try:
            datetime.fromisoformat(created_at)
        except ValueError as error:
            raise ArtifactError(
                f"header.created_at must be an ISO 8601 time; got {created_at!r}"
            ) from error

    @sha256.validator
    @prefix_hash.validator
    def _check_digest(self, attribute: object, value: str) -> None:
        if not re.fullmatch("[0-9a-f]{64}", value):
            name = getattr(attribute, "name", "digest")
            raise ArtifactError(f"header.{name} must be 64 hex digits; got {value[:70]!r}")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's KV."""
        return self.layout.values_per_token * self.layout.block_size * ITEM_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes of all KV, tail included; token ids and header come on top."""
        return self.layout.values_per_token * self.layout.num_tokens * ITEM_BYTES[self.dtype]

    @classmethod
    def of(cls, cartridge: Cartridge) -> CartridgeHeader:
        """The header a cartridge is written under."""
        return cls(
            layout=cartridge.layout,
            model=cartridge.model,
            dtype=dtype_name(cartridge.kv),
            trained=cartridge.trained,
            created_at=cartridge.created_at,
            sha256=cartridge.sha256,
            prefix_hash=cartridge.prefix_hash,
        )

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> CartridgeHeader:
        """The header among a file's fields; a newer format and a foreign file are refused."""
        text = fields.get("header")
        if not isinstance(text, str):
            if fields.keys() & set(PRIOR_KEYS):
                raise ArtifactError(
                    "is a prior, not a cartridge; give the cartridge it was baked for"
                )
            if "overlay" in fields:
                raise ArtifactError(
                    "is an overlay, not a cartridge; give the cartridge it was baked for"
                )
            held = ", ".join(sorted(map(str, fields))[:6]) or "nothing"
            raise ArtifactError(
                f"is not a kri-core cartridge: wanted a header, it holds {held}; "
                "kri-core cartridge convert imports other tools' .pt files"
            )
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError("has a header that is not JSON; build it again") from error
        version = data.get("format_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ArtifactError(
                f"is of cartridge format {version}, this kri-core reads up to {FORMAT_VERSION}; "
                "upgrade kri-core"
            )
        return structure(cls, data, "header")

    def to_text(self) -> str:
        """Canonical JSON."""
        return canonical_json(asdict(self))
