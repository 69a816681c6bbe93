"""A server's overlays: mapped when first looked for, and again when their file was replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from attrs import define, field

from kri_core.artifacts import Overlay, read_overlay
from kri_core.errors import ArtifactError
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.vllm.held_files import HeldFiles
from kri_core.substrate.vllm.reblocking import routing_block_size
from kri_core.substrate.vllm.settings import CartridgeEntry
from kri_core.types import Cartridge, Manifest


@define(eq=False)
class Overlays:
    """Repaired KV by cartridge; each is for one stack and one selection of it."""

    entries: Mapping[str, CartridgeEntry]
    _files: HeldFiles[Overlay] = field(factory=partial(HeldFiles, read_overlay), init=False)

    def check(self, cartridge_of: Callable[[str], Cartridge], block_size: int) -> None:
        """Refuse an overlay that could never be served by an engine of this block size."""
        for cart_id in self.entries:
            for path, overlay in self._of(cart_id):
                _check(path, overlay, cartridge_of(cart_id), block_size)

    def find(self, cartridge: Cartridge, manifest: Manifest) -> Overlay | None:
        """The one for exactly this selection, if there is one."""
        found = (overlay for _, overlay in self._of(cartridge.cart_id))
        return next((overlay for overlay in found if overlay.serves(cartridge, manifest)), None)

    def may_serve(self, cartridge: Cartridge, router: Router) -> bool:
        """Whether one has the stack's repairs: only the selection will say whether it is for it."""
        wanted = (cartridge.sha256, router.stack.config.repairs)
        return any(
            (overlay.header.cartridge_sha256, parse(overlay.header.stack).repairs) == wanted
            for _, overlay in self._of(cartridge.cart_id)
        )

    def get(self, cart_id: str, sha256: str) -> Overlay:
        """The one that was planned for."""
        for _, overlay in self._of(cart_id):
            if overlay.header.sha256 == sha256:
                return overlay
        raise ArtifactError(
            f"the overlay of cartridge {cart_id!r} was replaced after a request was planned with "
            "it; send the request again"
        )

    def _of(self, cart_id: str) -> Iterator[tuple[Path, Overlay]]:
        for path in self.entries[cart_id].overlays:
            yield path, self._files.get(path)


def _check(path: Path, overlay: Overlay, cartridge: Cartridge, block_size: int) -> None:
    own, routed = overlay.layout.block_size, routing_block_size(cartridge, block_size)
    if overlay.header.cartridge_sha256 != cartridge.sha256:
        raise ArtifactError(
            f"overlay {path} was baked for another content than cartridge {cartridge.cart_id!r} "
            "has; bake it again, or give it to its own cartridge"
        )
    if own != routed:
        raise ArtifactError(
            f"overlay {path} keeps blocks of {own} tokens, this server routes blocks of {routed}; "
            f"start it with --block-size {own}"
        )
