"""Random choices that a text seed decides, the same in every process, version and machine.

Of Python's generator only `random()` is promised to stay as it is, so nothing else is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Value = TypeVar("Value")


class Draws:
    """A stream of choices; the parts of the seed are told apart."""

    def __init__(self, *seed: str | int) -> None:
        self._random = Random("/".join(map(str, seed))).random  # noqa: S311 - no secret

    def below(self, count: int) -> int:
        """A whole number from 0 to count − 1."""
        return int(self._random() * count)

    def one(self, values: Sequence[Value]) -> Value:
        """One of the values."""
        return values[self.below(len(values))]

    def some(self, values: Sequence[Value], count: int) -> tuple[Value, ...]:
        """As many of the values as wanted, without replacement, in random order."""
        left = list(values)
        for at in range(count):
            other = at + self.below(len(left) - at)
            left[at], left[other] = left[other], left[at]
        return tuple(left[:count])
