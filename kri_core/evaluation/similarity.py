"""Whether a stack chooses what a killed one chose: Jaccard over what they were free to choose.

Pins are left out, as two stacks with the same pins would always look alike; so is an item whose
budget is so near to all blocks that random choices, too, are alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kri_core.evaluation.records import Header, Record, Result

ALIKE = 0.95  # EVAL 4
Pair = tuple[frozenset[int], frozenset[int], int]  # two choices among so many blocks


def mean_jaccard(pairs: Iterable[Pair]) -> float | None:
    """Over the pairs that say something; None if none does."""
    found = [_jaccard(mine, theirs) for mine, theirs, among in pairs if _tells(theirs, among)]
    return math.fsum(found) / len(found) if found else None


def chosen(kept: Sequence[int], total: int, anchor: int, recent: int) -> tuple[frozenset[int], int]:
    """The blocks that were kept and not pinned, and among how many they were chosen."""
    free = range(anchor, max(anchor, total - recent))
    return frozenset(kept).intersection(free), len(free)


def record_jaccard(new: Record, killed: Record) -> float | None:
    """How alike two records of the same items, pins and budget chose; None if not comparable."""
    mine, theirs = new.header, killed.header
    same = (mine.items_digest, mine.pins) == (theirs.items_digest, theirs.pins)
    if not same or mine.digest == theirs.digest:
        return None
    old = {result.key: result for result in killed.results}
    pairs = [(one, old[one.key]) for one in new.results if one.key in old]
    return mean_jaccard(
        (_of(one, mine)[0], *_of(other, theirs))
        for one, other in pairs
        if one.total_blocks == other.total_blocks
    )


def _of(result: Result, header: Header) -> tuple[frozenset[int], int]:
    return chosen(result.kept, result.total_blocks, header.anchor, header.recent)


def _jaccard(mine: frozenset[int], theirs: frozenset[int]) -> float:
    return len(mine & theirs) / len(mine | theirs)


def _tells(blocks: frozenset[int], among: int) -> bool:
    """Two random choices of so many share k²/M blocks, a Jaccard of k / (2M − k)."""
    return bool(blocks) and len(blocks) / (2 * among - len(blocks)) < ALIKE
