"""The rows of a document as this process answers them, by the hf substrate."""

from __future__ import annotations

from attrs import frozen

from kri_core.evaluation.tasks import Document
from kri_core.running.answering import Outcome, Reader, Selection
from kri_core.running.planning import PlannedRow
from kri_core.running.selecting import Chooser
from kri_core.types import Cartridge


@frozen(eq=False)
class HfRows:
    """Answers the items of one document; `ServedRows` does the same by a server."""

    reader: Reader
    document: Document
    chooser: Chooser

    @property
    def cartridge(self) -> Cartridge:
        """The document's."""
        return self.reader.cartridge

    def answer(self, row: PlannedRow, seed: int) -> list[tuple[Selection, Outcome]]:
        """What was kept for each item, and how it came out."""
        chosen = self.chooser.choose(row, seed)
        outcomes = self.reader.outcomes(list(zip(self.document.items, chosen, strict=True)))
        return list(zip(chosen, outcomes, strict=True))
