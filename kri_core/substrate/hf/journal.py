"""What a bake has already computed, kept batch by batch so that a killed one goes on."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from attrs import Factory, frozen
from safetensors.torch import load, save
from torch import Tensor

from kri_core.artifacts.atomic import replacing
from kri_core.artifacts.opening import naming
from kri_core.identity import digest
from kri_core.probe import ProbeText
from kri_core.substrate.hf.model import HfModel
from kri_core.types import Cartridge

logger = logging.getLogger(__name__)


class Journal(Protocol):
    """Rows by the name of the work and the unit; see `Probe.each`."""

    def get(self, name: str, unit: int) -> Tensor | None:
        """The row kept for a unit, if there is one."""

    def put(self, name: str, units: Sequence[int], rows: Tensor) -> None:
        """Keep one row per unit, [unit, ...]."""


@frozen(eq=False)
class MemoryJournal:
    """Lets the scorers of one process share work; nothing survives it."""

    rows: dict[tuple[str, int], Tensor] = Factory(dict)

    def get(self, name: str, unit: int) -> Tensor | None:
        """As the protocol says."""
        return self.rows.get((name, unit))

    def put(self, name: str, units: Sequence[int], rows: Tensor) -> None:
        """As the protocol says."""
        self.rows.update(zip([(name, unit) for unit in units], rows, strict=True))


@frozen(eq=False)
class DiskJournal:
    """One file per batch in a folder, written whole or not at all.

    `scope` says what the rows depend on beside the name: cartridge, model, dtype, probe texts. A
    file is named by the sha256 of its bytes; one that does not match is ignored and its batch is
    computed again. Rows do not know their batch, so another --batch resumes them too.
    """

    folder: Path
    scope: str
    _read: dict[str, dict[int, Tensor]] = Factory(dict)
    _files: set[Path] = Factory(set)  # found or written here

    def get(self, name: str, unit: int) -> Tensor | None:
        """As the protocol says."""
        return self._rows(name).get(unit)

    def put(self, name: str, units: Sequence[int], rows: Tensor) -> None:
        """As the protocol says."""
        rows = rows.cpu().contiguous()
        data = save({"units": torch.tensor(list(units)), "rows": rows})
        place = self._place(name)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{hashlib.sha256(data).hexdigest()}.safetensors"
        with naming(path), replacing(path) as file:
            file.write(data)
        self._files.add(path)
        self._rows(name).update(zip(units, rows, strict=True))

    def discard(self) -> None:
        """Remove what this bake kept and took up, once it is done.

        Another bake's batches stay: it may be running, or have been killed and be taken up again.
        """
        self._read.clear()
        for path in self._files:
            path.unlink(missing_ok=True)
        for place in sorted({*(path.parent for path in self._files), self.folder}, reverse=True):
            with contextlib.suppress(OSError):  # not empty, or gone already
                place.rmdir()
        self._files.clear()

    def _rows(self, name: str) -> dict[int, Tensor]:
        """A name's rows by unit; its files are read once."""
        if name not in self._read:
            place = self._place(name)
            paths = sorted(place.glob("*.safetensors"))
            self._files.update(paths, place.glob(".*.tmp"))  # what a killed bake was writing
            self._read[name] = {u: row for path in paths for u, row in _read_batch(path).items()}
        return self._read[name]

    def _place(self, name: str) -> Path:
        return self.folder / digest(self.scope, name)


def _read_batch(path: Path) -> dict[int, Tensor]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # another bake is done with it
        return {}
    if hashlib.sha256(data).hexdigest() != path.stem:
        logger.warning("%s is damaged; its batch is computed again", path)
        return {}
    batch = load(data)
    return dict(zip(batch["units"].tolist(), batch["rows"], strict=True))


def journal_scope(model: HfModel, cartridge: Cartridge, texts: Sequence[ProbeText]) -> str:
    """A `DiskJournal`'s scope for a probe of these."""
    ids = [text.token_ids for text in texts]
    return digest(cartridge.sha256, model.identity.fingerprint, str(model.dtype), ids)
