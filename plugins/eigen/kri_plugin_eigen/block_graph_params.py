"""The parameters that every centrality of the block graph has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import field, frozen
from attrs.validators import ge, gt

if TYPE_CHECKING:
    from kri_core import Layout


@frozen
class BlockGraphParams:
    """How heads are weighed, which sinks are dropped, and how edges are bounded: see README."""

    heads: Literal["uniform", "retrieval", "entropy", "concentration", "softmax_gain"] = "retrieval"
    sink: Literal["tokens", "block"] = "tokens"
    n_sink: int = field(default=4, validator=ge(0))
    lift_cap: float = field(default=50.0, validator=gt(0))

    def sinks(self, layout: Layout) -> int:
        """Tokens at the document's start that are taken away."""
        return self.n_sink if self.sink == "tokens" else layout.block_size
