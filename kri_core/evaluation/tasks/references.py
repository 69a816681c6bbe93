"""Reference selections: what a stack is compared with. From spans to blocks, without scores.

Each keeps the pins of the split it is given and fills `mid_budget`, as a selector would.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks.scoring import Span, evidence_blocks
from kri_core.types import Split


def random_blocks(split: Split, seed: int, prefix_hash: str) -> tuple[int, ...]:
    """The pins and random mid blocks, those that `random-middle[seed=…]` draws."""
    return _filled(split, (), seed, prefix_hash)


def oracle(
    split: Split, evidence: Sequence[Span], block_size: int, seed: int, prefix_hash: str
) -> tuple[int, ...]:
    """The pins, the blocks of one question's evidence in the document's order, the rest random."""
    wanted = evidence_blocks(evidence, block_size, len((*split.anchor, *split.mid, *split.recent)))
    return _filled(split, sorted(wanted), seed, prefix_hash)


def oracle_doc(
    split: Split,
    evidence: Sequence[Sequence[Span]],
    block_size: int,
    seed: int,
    prefix_hash: str,
) -> tuple[int, ...]:
    """The pins, then every question's evidence as it first occurs, as far as the budget goes."""
    everything = [span for spans in evidence for span in spans]
    return oracle(split, everything, block_size, seed, prefix_hash)


def position_matched(which: int, num_documents: int) -> int:
    """The document whose kept places are used in this one: the next, wrapping round.

    What these places gain over random blocks is placement, whatever stands there; what the stack's
    own selection gains over them is content.
    """
    if num_documents < 2:
        raise ConfigError("placement is told from two documents or more; got one, run more")
    return (which + 1) % num_documents


def _filled(split: Split, first: Sequence[int], seed: int, prefix_hash: str) -> tuple[int, ...]:
    """Wanted mid blocks in this order, then random ones; ALGORITHMS 8.3 says how they are drawn."""
    import numpy as np

    draws = np.random.Generator(np.random.PCG64(seed ^ crc32(prefix_hash.encode())))
    order = dict.fromkeys(block for block in first if block in set(split.mid))
    order |= dict.fromkeys(int(block) for block in draws.permutation(split.mid))
    return tuple(sorted((*split.anchor, *split.recent, *list(order)[: split.mid_budget])))
