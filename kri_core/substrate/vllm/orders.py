"""What the scheduler's process tells the worker's and keeps of a request: plain values."""

from __future__ import annotations

import hashlib

from attrs import asdict, evolve, frozen

from kri_core.types import Manifest


@frozen
class RepairOrder:
    """What a repair of freshly loaded rows must know."""

    manifest: Manifest
    token_ids: tuple[int, ...]  # of the kept tokens: of the rows, in order


@frozen
class Plan:
    """What one routed request is to attend to, settled when it arrives and never changed.

    Rows count the engine's physical blocks of `block_size` tokens from the prompt's start.
    """

    request_id: str
    cart_id: str
    stack: str  # canonical, scorer included
    kept: tuple[int, ...]  # blocks of the routing, ascending
    total_blocks: int
    routing_block_size: int
    block_size: int  # the engine's
    num_tokens: int  # that come from the cartridge; the rest of the prompt is computed
    rows: tuple[int, ...]  # the rows that are there, ascending; all others are absent
    shared: tuple[tuple[int, bytes], ...]  # whole rows that others may use, with their hash
    sha256: str  # of the cartridge
    repair: RepairOrder | None = None
    overlay: str | None = None  # sha256 of the overlay that the rows are read from
    queries: str | None = None  # where the question's vectors came from, if it was asked for any

    @property
    def num_rows(self) -> int:
        """Rows the cartridge's tokens take, absent ones counted."""
        return -(-self.num_tokens // self.block_size)

    @property
    def kept_fraction(self) -> float:
        """Of the cartridge's blocks; 1 of a cartridge that has none."""
        return len(self.kept) / self.total_blocks if self.total_blocks else 1.0

    def read_from(self, overlay: str) -> Plan:
        """The same rows with an overlay's KV, which only those who read the same one may share."""
        digests = (hashlib.sha256(key + overlay.encode()).digest() for _, key in self.shared)
        rows = (row for row, _ in self.shared)
        return evolve(self, overlay=overlay, shared=tuple(zip(rows, digests, strict=True)))


@frozen
class Row:
    """Where one row of a request goes in the engine's cache."""

    first_token: int  # of the cartridge
    num_tokens: int
    block_id: int


@frozen
class LoadOrder:
    """The rows of one request that the worker has to write before the step's forward."""

    request_id: str
    cart_id: str
    sha256: str  # of the cartridge that was planned for; another one is not loaded
    rows: tuple[Row, ...]
    repair: RepairOrder | None = None
    overlay: str | None = None  # sha256 of the one to read instead


@frozen
class Orders:
    """What the worker has to do in one step."""

    loads: tuple[LoadOrder, ...] = ()
    refused: tuple[str, ...] = ()  # requests whose KV will never come


@frozen
class Repaired:
    """What the repairs of one request came to."""

    request_id: str
    tokens: int  # made afresh, by any of the repairs
    kept_tokens: int
    deviation_mean: float  # these three of the first repair: of the cartridge's own KV
    deviation_max: float
    share_captured: float

    @property
    def said(self) -> dict[str, object]:
        """What the request's response says of it."""
        return {name: value for name, value in asdict(self).items() if name != "request_id"}
