"""What forwards over cartridges gave, shared by the scorers of a question and by a second run."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from attrs import Factory, asdict, define
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from kri_core.artifacts.atomic import replacing
from kri_core.artifacts.opening import naming
from kri_core.probe import Readout

logger = logging.getLogger(__name__)

ASKED = "asked"  # the digest, in the file, too: a name alone may be another's
MAX_BYTES = 64 << 20  # of all that is kept in memory
MAX_SHARE = 8  # what is larger than this part of it is not kept: no question needs so much


@define(eq=False)
class Captures:
    """Readouts by the digest of what was asked; the one wanted longest ago leaves memory first."""

    folder: Path | None = None  # where they outlive the process; None: nowhere
    _kept: OrderedDict[str, Readout] = Factory(OrderedDict)
    _bytes: int = 0

    def of(self, asked: str, run: Callable[[], Readout]) -> Readout:
        """What is kept under this name, or what `run` gives."""
        if asked in self._kept:
            self._kept.move_to_end(asked)
            return self._kept[asked]
        readout = self._read(asked)
        if readout is None:
            readout = run()
            if not _fits(readout):
                return readout
            self._write(asked, readout)
        self._kept[asked] = readout
        self._bytes += _size(readout)
        while self._bytes > MAX_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)
        return readout

    def _read(self, asked: str) -> Readout | None:
        path = self._path(asked)
        if path is None or not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                if (file.metadata() or {}).get(ASKED) == asked:
                    return Readout(**{name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no dict
            error: Exception = ValueError("it is another capture's")
        except (SafetensorError, OSError, TypeError) as fault:
            error = fault
        logger.warning("%s is read anew: %s", path, error)
        return None

    def _write(self, asked: str, readout: Readout) -> None:
        path = self._path(asked)
        if path is None:
            return
        data = save({name: side.contiguous() for name, side in _sides(readout)}, {ASKED: asked})
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path), replacing(path) as file:
            file.write(data)

    def _path(self, asked: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{asked}.safetensors"


def _sides(readout: Readout) -> list[tuple[str, Tensor]]:
    return [
        (name, side) for name, side in asdict(readout, recurse=False).items() if side is not None
    ]


def _size(readout: Readout) -> int:
    return sum(side.nbytes for _, side in _sides(readout))


def _fits(readout: Readout) -> bool:
    return MAX_SHARE * _size(readout) <= MAX_BYTES
