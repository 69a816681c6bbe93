"""What the reference rows keep of a document: told by no stack."""

from __future__ import annotations

import time

from kri_core.evaluation.tasks import Document
from kri_core.evaluation.tasks.references import oracle, oracle_doc, random_blocks
from kri_core.running.answering import Selection
from kri_core.running.planning import PlannedRow
from kri_core.substrate.hf import HfModel, load_prefix
from kri_core.substrate.hf.quantise import quantised
from kri_core.types import Cartridge, Split


def keep(
    row: PlannedRow, model: HfModel, cartridge: Cartridge, document: Document, seed: int
) -> list[Selection]:
    """A selection for each item; all but `oracle` keep the same whatever is asked."""
    layout, prefix_hash = cartridge.layout, cartridge.prefix_hash
    split, size = _split(row, layout.num_blocks), layout.block_size
    spans = [item.evidence for item in document.items]
    if row.kind == "oracle":
        return [Selection(oracle(split, span, size, seed, prefix_hash)) for span in spans]
    if row.kind == "full":
        selection = Selection(tuple(range(layout.num_blocks)))
    elif row.kind == "floor":
        selection = Selection((), document=False)
    elif row.kind == "random":
        selection = Selection(random_blocks(split, seed, prefix_hash))
    elif row.kind == "oracle-doc":
        selection = Selection(oracle_doc(split, spans, size, seed, prefix_hash))
    else:
        selection = _quantised(row.bits, model, cartridge)
    return [selection] * len(document.items)


def _split(row: PlannedRow, blocks: int) -> Split:
    anchor, recent, budget = row.pins
    left = max(0, (budget or 0) - anchor - recent)
    return Split.pin(blocks, anchor=anchor, recent=recent, mid_budget=left)


def _quantised(bits: int, model: HfModel, cartridge: Cartridge) -> Selection:
    """Every block in so many bits."""
    blocks, start = tuple(range(cartridge.layout.num_blocks)), time.perf_counter()
    prefix = quantised(load_prefix(model, cartridge, blocks), bits)
    seconds = time.perf_counter() - start
    return Selection(blocks, repaired=prefix, variant=f"quantised {bits}", seconds=seconds)
