"""Files that are held in memory for as long as they stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from attrs import define, field

from kri_core.artifacts.opening import file_state

Held = TypeVar("Held")


@define(eq=False)
class HeldFiles(Generic[Held]):
    """What was read of each file; as many as a server was given."""

    read: Callable[[Path], Held]
    _held: dict[Path, tuple[object, Held]] = field(factory=dict, init=False)

    def get(self, path: Path) -> Held:
        """As the file is now."""
        try:
            state: object = file_state(path.stat())
        except OSError:
            state = None  # reading it says what is wrong
        held = self._held.get(path)
        if held is None or held[0] != state:
            held = (state, self.read(path))
            self._held[path] = held
        return held[1]
