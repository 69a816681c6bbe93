"""Lists of whole numbers as a stack can hold them: "8-16-32", "1..64-128", "all"."""

from __future__ import annotations

import re

from kri_core import ConfigError

_PART = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?", re.ASCII)


def _ranges(text: str, name: str) -> list[range]:
    parts = [_PART.fullmatch(part) for part in text.split("-")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    if len(ranges) < len(parts) or not all(ranges):
        raise ConfigError(f"{name} is such as 8-16-32, 1..64 or all; got {text!r}")
    return ranges


def check_budgets(_params: object, _attribute: object, text: str) -> None:
    """Budgets start at 1."""
    if text != "all" and any(part[0] < 1 for part in _ranges(text, "budgets")):
        raise ConfigError(f"budgets are numbers of blocks from 1; got {text!r}")


def check_layers(_params: object, _attribute: object, text: str) -> None:
    """How many layers there are is known only with a cartridge."""
    if text != "all":
        _ranges(text, "layers")


def chosen_budgets(text: str, num_blocks: int) -> list[int]:
    """Ascending; one of all blocks or more needs no list, unless there is no smaller one."""
    parts = [range(1, num_blocks)] if text == "all" else _ranges(text, "budgets")
    below = {budget for part in parts for budget in range(part.start, min(part.stop, num_blocks))}
    return sorted(below) or [num_blocks]


def chosen_layers(text: str, num_layers: int) -> list[int]:
    """Ascending; a layer the model does not have is refused."""
    parts = [range(num_layers)] if text == "all" else _ranges(text, "layers")
    highest = max(part[-1] for part in parts)
    if highest >= num_layers:
        raise ConfigError(
            f"layers={text} names layer {highest}, but the cartridge has layers 0 to "
            f"{num_layers - 1}"
        )
    return sorted({layer for part in parts for layer in part})
