"""What the selectors choose from: relevances, cosines between blocks, and the blocks kept anyway.

Cosines are summed in float64 and rounded to float32, so that equal blocks tie bit for bit whatever
the shape or the number of threads; everything after is float64.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from kri_core import BlockScores, ConfigError, Ranking, Split


@frozen(eq=False)
class Candidates:
    """Mid blocks to choose from, beside the pins."""

    relevance: Tensor  # float64 [block], 0 to 1 over mid; pins are cut off at both ends
    features: Tensor  # float64 [block, dim], unit vectors
    pinned: tuple[int, ...]
    mid: tuple[int, ...]
    wanted: int

    @classmethod
    def of(
        cls,
        name: str,
        scores: BlockScores,
        split: Split,
        features: Tensor | None,
        ranking: Ranking,
    ) -> Candidates:
        """Read the scores as the selector's parameters say; without features it cannot choose."""
        if features is None:
            raise ConfigError(
                f"{name!r} compares blocks by their features, and there are none here; bake a "
                "prior with a model (kri-core bake --model) and give it with --prior"
            )
        pooled = ranking.pooled(scores, split).double()
        low, high = pooled[list(split.mid)].aminmax()
        scaled = ((pooled - low) / (high - low)).clamp(0, 1)
        relevance = scaled if high > low else torch.ones_like(pooled)
        pinned = (*split.anchor, *split.recent)
        return cls(relevance, features.double(), pinned, split.mid, split.mid_budget)

    def cosines(self, block: int) -> Tensor:
        """Of every block with one, [block]."""
        return (self.features @ self.features[block]).float().double()

    def all_cosines(self) -> Tensor:
        """Of every block with every block, [block, block]."""
        return (self.features @ self.features.T).float().double()

    def best(self, values: Tensor, chosen: list[int]) -> int:
        """The mid block with the largest value that is not chosen yet; ties: the earliest."""
        taken = set(chosen)
        listed = values.tolist()
        return max((b for b in self.mid if b not in taken), key=lambda b: (listed[b], -b))
