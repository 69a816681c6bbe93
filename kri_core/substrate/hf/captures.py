"""What forwards over one cartridge gave, so that the scorers of one question share them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from attrs import Factory, astuple, define

from kri_core.probe import Readout

MAX_BYTES = 64 << 20  # of all that is kept
MAX_SHARE = 8  # what is larger than this part of it is not kept: no question needs so much


@define(eq=False)
class Captures:
    """Readouts by what was asked; the one that was wanted longest ago goes first."""

    _kept: OrderedDict[Hashable, Readout] = Factory(OrderedDict)
    _bytes: int = 0

    def of(self, asked: Hashable, run: Callable[[], Readout]) -> Readout:
        """What is kept of these questions, or what `run` gives."""
        if asked in self._kept:
            self._kept.move_to_end(asked)
            return self._kept[asked]
        readout = run()
        if MAX_SHARE * _size(readout) <= MAX_BYTES:
            self._kept[asked] = readout
            self._bytes += _size(readout)
        while self._bytes > MAX_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)
        return readout


def _size(readout: Readout) -> int:
    return sum(side.nbytes for side in astuple(readout, recurse=False) if side is not None)
