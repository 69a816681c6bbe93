"""Why each block of a cartridge was kept or left out, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from attrs import frozen

from kri_core.types import Cartridge, Manifest

Part = Literal["anchor", "mid", "recent"]


@frozen
class BlockReason:
    """One block's fate. Rank 1 is the best-scored mid block; None where no score was asked."""

    block: int
    part: Part
    kept: bool
    rank: int | None
    score: float | None
    text: str | None  # None where no tokenizer is at hand

    @property
    def why(self) -> str:
        """A phrase for people."""
        if self.part != "mid":
            return f"pinned as {self.part}"
        if self.rank is None:
            return "chosen" if self.kept else "not chosen"
        return f"rank {self.rank} of the mid, score {self.score:.4g}"


def explain(
    manifest: Manifest, cartridge: Cartridge, decode: Callable[[Sequence[int]], str] | None
) -> list[BlockReason]:
    """Reasons for all blocks, in order; `decode` turns token ids into text."""
    split, scores, layout = manifest.split, manifest.scores, cartridge.layout
    parts: dict[int, Part] = dict.fromkeys(split.anchor, "anchor")
    parts |= dict.fromkeys(split.recent, "recent")
    ranks: dict[int, int] = {}
    if scores is not None:
        ordered = sorted(split.mid, key=lambda block: (-scores[block], block))
        ranks = {block: rank for rank, block in enumerate(ordered, 1)}
    kept = set(manifest.kept)
    texts: dict[int, str] = {}
    if decode is not None and cartridge.token_ids:
        for block in range(manifest.total_blocks):
            tokens = layout.tokens_of([block])
            texts[block] = decode(cartridge.token_ids[tokens[0] : tokens[-1] + 1])
    return [
        BlockReason(
            block=block,
            part=parts.get(block, "mid"),
            kept=block in kept,
            rank=ranks.get(block),
            score=scores[block] if scores is not None else None,
            text=texts.get(block),
        )
        for block in range(manifest.total_blocks)
    ]
