"""Two controls on needle8: a single code to copy, and codes that are told four times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from kri_core.evaluation.tasks.needle import DIGITS, FACT, Buried, Needle8


@frozen
class NiahCopy(Buried):
    """niah-copy: one code in 2 048 tokens, against codes that differ in their first digit alone.

    Nothing else in the document competes, so what is gained here is gained by position or content
    of a single place.
    """

    @property
    def num_facts(self) -> int:
        """One."""
        return 1

    def _rivals(self, codes: Sequence[str], which: int) -> tuple[Sequence[str], int]:
        code = codes[which]
        return [digit + code[1:] for digit in DIGITS], DIGITS.index(code[0])


@frozen
class NearbyCopies(Needle8):
    """nearby-copies: needle8 with each code told four times in other words, near each other.

    Leaving one block out changes little while its copies are there.
    """

    wordings: ClassVar[tuple[str, ...]] = (
        FACT,
        " {name} opens the door with the number {code}.",
        " Whoever calls for {name} has to enter {code} first.",
        " On the list by the gate, {code} stands next to {name}.",
    )
