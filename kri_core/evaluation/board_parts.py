"""The tables of a board that are there only where their rows were run, each with its words."""

from __future__ import annotations

from kri_core.evaluation.board import Board
from kri_core.evaluation.board_words import signed

PLACEMENT = (
    "Placement is the row with the blocks that it kept of the next document, less random blocks "
    "without pins; content is the row less that."
)
EQUAL_BYTES = (
    "Equal bytes: the row less the whole document in the most bits whose bytes fit in those of the "
    "kept blocks, or in 2 bits where none fit; paired, for one comparison, unadjusted. Kept is the "
    "row's share of the blocks, bytes the quantised document's share of the bytes: where that is "
    "more, the row held less."
)


def placement_table(board: Board) -> list[tuple[str, ...]]:
    """A header and a line per row that was also run with the next document's blocks."""
    return [
        ("row", "placement", "content"),
        *(
            (row.label, signed(row.placement.placement), signed(row.placement.content))
            for row in board.rows
            if row.placement
        ),
    ]


def equal_bytes_table(board: Board) -> list[tuple[str, ...]]:
    """A header and a line per row beside the quantised document of the board's budget."""
    return [
        ("row", "quantised", "− quantised", "kept", "bytes"),  # noqa: RUF001
        *(
            (
                row.label,
                row.equal_bytes.quantised,
                signed(row.equal_bytes.difference),
                f"{row.kept_fraction:.1%}",
                f"{row.equal_bytes.bytes_share:.1%}",
            )
            for row in board.rows
            if row.equal_bytes
        ),
    ]
