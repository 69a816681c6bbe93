"""The priors of a server's cartridges, as their files are now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from attrs import define, field

from kri_core.artifacts import read_prior
from kri_core.errors import ConfigError
from kri_core.prior import Prior
from kri_core.routing import Router
from kri_core.substrate.vllm.asked import shown
from kri_core.substrate.vllm.held_files import HeldFiles
from kri_core.substrate.vllm.settings import CartridgeEntry


@define(eq=False)
class Priors:
    """Held in memory, whole, and read again when a file was replaced."""

    _files: HeldFiles[Prior] = field(factory=partial(HeldFiles, read_prior), init=False)

    def read(self, path: Path) -> Prior:
        """As the file is now."""
        return self._files.get(path)

    def asked(self, entry: CartridgeEntry, router: Router, named: object) -> Prior | None:
        """The prior a request names, or the one its stack's scorer made, or the first.

        `named` is a prior's file name with or without suffix, or a mapping of cartridges to such.
        """
        if isinstance(named, Mapping):
            named = named.get(entry.cart_id)
        if named is not None:
            return self.read(_named(entry, named))
        scorer = router.stack.scorer
        if scorer is None or len(entry.priors) < 2:
            return self.read(entry.priors[0]) if entry.priors else None
        held = [self.read(path) for path in entry.priors]
        made = [prior for prior in held if prior.meta and prior.meta.algorithm == scorer.ref.name]
        return made[0] if made else held[0]


def _named(entry: CartridgeEntry, name: object) -> Path:
    """Only a prior the server was given: a request cannot make it read another file."""
    for path in entry.priors:
        if name in (path.name, path.stem):
            return path
    held = ", ".join(path.stem for path in entry.priors) or "none"
    raise ConfigError(
        f"prior {shown(name)} is not one of cartridge {entry.cart_id!r}, which has {held}; name "
        "one of these, or leave it out"
    )
