"""The cartridges of a server: mapped when first asked for, and again when their file was replaced.

A prompt finds its cartridge by a chain hash over its own tokens: one pass over the prompt, however
many cartridges there are. Held in memory: the token ids of all cartridges, about 40 bytes each.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import define, evolve, frozen

from kri_core.artifacts import is_native, read_cartridge, read_foreign_cartridge
from kri_core.artifacts.opening import file_state, naming
from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity
from kri_core.substrate.vllm.settings import CartridgeEntry
from kri_core.types import Cartridge

CHAIN = 16  # tokens a link of the chain hash covers; block sizes have nothing to do with it
RESCAN_SECONDS = 1.0  # how often the files are looked at for prompts that name no cartridge
UNKNOWN = ModelIdentity("unknown")  # of an imported cartridge: its file does not say
State = tuple[int, int, int, int]


@frozen(eq=False)
class Held:
    """A cartridge as its file was when it was mapped."""

    cartridge: Cartridge
    state: State


@define(eq=False)
class Shelf:
    """Cartridges by id and by token prefix."""

    entries: Mapping[str, CartridgeEntry]
    block_size: int  # of imported cartridges, which record none
    check: Callable[[Cartridge], None]  # refuses one that the served model did not make
    _held: dict[str, Held]
    _index: dict[tuple[int, bytes], list[str]]  # (links, chain hash) → ids of that prefix
    _scanned: float

    @classmethod
    def of(
        cls,
        entries: Sequence[CartridgeEntry],
        block_size: int,
        check: Callable[[Cartridge], None],
    ) -> Shelf:
        """Look at every file, so that a server with a wrong one does not start."""
        shelf = cls({entry.cart_id: entry for entry in entries}, block_size, check, {}, {}, 0.0)
        for cart_id in shelf.entries:
            shelf.get(cart_id)
        return shelf

    def get(self, cart_id: str) -> Cartridge:
        """The cartridge as its file is now."""
        entry = self.entries[cart_id]
        state = _state(entry.path)
        held = self._held.get(cart_id)
        if held is None or held.state != state:
            held = Held(self._read(entry), state)  # if it fails, its prompts still find the fault
            self._forget(cart_id)
            self._held[cart_id] = held
            *_, link = chain(held.cartridge.token_ids)
            self._index.setdefault(link, []).append(cart_id)
        return held.cartridge

    def match(self, prompt: Sequence[int]) -> Cartridge | None:
        """The longest cartridge whose tokens all stand at the start of the prompt."""
        self._rescan()
        longest: Cartridge | None = None
        for link in chain(prompt):
            for cart_id in self._index.get(link, ()):
                held = self._held[cart_id].cartridge
                if longest is not None and len(held.token_ids) <= len(longest.token_ids):
                    continue
                if tuple(prompt[: len(held.token_ids)]) == held.token_ids:
                    longest = held
        return None if longest is None else self.get(longest.cart_id)

    def _rescan(self) -> None:
        """Take in replaced files; one that cannot be read is left to the request that wants it."""
        now = time.monotonic()
        if now - self._scanned < RESCAN_SECONDS:
            return
        self._scanned = now
        for cart_id, held in list(self._held.items()):
            try:
                if _state(self.entries[cart_id].path) != held.state:
                    self.get(cart_id)
            except ArtifactError:
                continue

    def _forget(self, cart_id: str) -> None:
        self._held.pop(cart_id, None)
        for ids in self._index.values():
            if cart_id in ids:
                ids.remove(cart_id)

    def _read(self, entry: CartridgeEntry) -> Cartridge:
        cartridge = open_cartridge(entry, self.block_size)
        self.check(cartridge)
        if not cartridge.token_ids:
            raise ArtifactError(
                f"cartridge {entry.cart_id!r} does not know its tokens, so no prompt can be "
                "compared with it; put prefix_token_ids.json beside it, or give manifest_path"
            )
        return cartridge


def open_cartridge(entry: CartridgeEntry, block_size: int) -> Cartridge:
    """A file of kri-core's own is mapped; another tool's is imported, whole, in memory."""
    if is_native(entry.path):
        found = read_cartridge(entry.path)
    else:
        found = read_foreign_cartridge(entry.path, block_size, UNKNOWN, entry.token_ids_path)
    return evolve(found, cart_id=entry.cart_id)


def chain(tokens: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """(links, hash) of every prefix of whole links, the empty one first."""
    held = b""
    yield 0, held
    packed = array("q", tokens).tobytes()
    width = CHAIN * 8
    for links in range(1, len(tokens) // CHAIN + 1):
        part = packed[(links - 1) * width : links * width]
        held = hashlib.blake2b(held + part, digest_size=16).digest()
        yield links, held


def _state(path: Path) -> State:
    with naming(path):
        try:
            return file_state(path.stat())
        except OSError as error:
            raise ArtifactError(
                f"cannot be opened ({error.strerror}); check the path and its permissions"
            ) from error
