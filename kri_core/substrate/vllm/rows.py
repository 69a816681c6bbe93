"""From a manifest to a plan: which of the engine's rows are there, and who may share them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from attrs import evolve, frozen

from kri_core.identity import digest
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.orders import Plan, RepairOrder
from kri_core.types import Cartridge, Manifest


@frozen
class Rows:
    """How an engine's cache is cut, and whether rows of cartridges are shared in it."""

    size: int  # tokens of a row, the engine's block size
    dtype: str  # of its KV
    share: bool

    def plan(
        self,
        asked: Asked,
        cartridge: Cartridge,
        manifest: Manifest,
        block_size: int,
        repaired: bool,
    ) -> Plan:
        """`block_size` is the routing's, a multiple of a row; a repaired request shares nothing.

        At least the prompt's last token is computed, in a row that is there.
        """
        num_tokens = min(cartridge.layout.num_tokens, len(asked.prompt) - 1)
        kept = set(manifest.kept)
        if num_tokens < manifest.total_blocks * block_size:
            kept.add(num_tokens // block_size)
        attended = evolve(manifest, kept=tuple(sorted(kept)))
        present = self._present(attended, block_size, num_tokens)
        whole = [row for row in present if (row + 1) * self.size <= num_tokens]
        secret = content_hash(cartridge, self.dtype, self.size, asked.cache_salt)
        return Plan(
            request_id=asked.request_id,
            cart_id=cartridge.cart_id,
            stack=manifest.stack,
            kept=attended.kept,
            total_blocks=manifest.total_blocks,
            routing_block_size=block_size,
            block_size=self.size,
            num_tokens=num_tokens,
            rows=present,
            shared=tuple(
                (row, hashlib.sha256(secret + row.to_bytes(8, "big")).digest())
                for row in (whole if self.share and not repaired else ())
            ),
            sha256=cartridge.sha256,
            repair=self._repair(cartridge, attended, present, num_tokens) if repaired else None,
        )

    def _present(self, manifest: Manifest, block_size: int, num_tokens: int) -> tuple[int, ...]:
        """The rows of the kept blocks, and those of the tail."""
        per_block = block_size // self.size
        rows = [
            row
            for block in manifest.kept
            for row in range(block * per_block, (block + 1) * per_block)
        ]
        rows += range(manifest.total_blocks * per_block, -(-num_tokens // self.size))
        return tuple(row for row in rows if row * self.size < num_tokens)

    def _repair(
        self, cartridge: Cartridge, manifest: Manifest, rows: Sequence[int], num_tokens: int
    ) -> RepairOrder:
        tokens = (range(row * self.size, min((row + 1) * self.size, num_tokens)) for row in rows)
        held = cartridge.token_ids
        return RepairOrder(manifest, tuple(held[token] for some in tokens for token in some))


def content_hash(cartridge: Cartridge, dtype: str, row_size: int, cache_salt: str | None) -> bytes:
    """What two requests must agree in to share a row of the engine's cache."""
    parts = (
        cartridge.sha256,
        cartridge.prefix_hash,
        cartridge.model.fingerprint,
        dtype,
        row_size,
        cache_salt,
    )
    return digest("kri-core cartridge rows", *parts).encode()
