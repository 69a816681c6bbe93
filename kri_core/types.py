"""The values that flow through kri-core, in the order they are made.

cartridge → scores → prior → split → manifest → repair plan. Every class is frozen and valid from
birth. Tensor axes are written as [layer, kv_head, block] and so on; docs/contract.md has them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from kri_core.cartridge import Cartridge as Cartridge
from kri_core.cartridge import Layout as Layout
from kri_core.errors import PluginError

if TYPE_CHECKING:
    from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """Every value is there to be read: neither sparse nor on the meta device."""
    import torch

    return tensor.layout is torch.strided and not tensor.is_meta


@frozen(eq=False)
class BlockScores:
    """What a scorer says of each block; higher means keep."""

    values: Tensor = field()  # float32 [layer or 1, kv_head or 1, block]

    @values.validator
    def _check(self, _attribute: object, values: Tensor) -> None:
        import torch

        if not isinstance(values, torch.Tensor):
            raise PluginError(f"BlockScores.values must be a tensor; got {type(values).__name__}")
        if not is_dense(values):
            raise PluginError("BlockScores.values must be a dense tensor; densify it")
        if values.ndim != 3:
            raise PluginError(
                "BlockScores.values must be [layer, kv_head, block]; "
                f"got shape {tuple(values.shape)}"
            )
        if values.dtype != torch.float32:
            raise PluginError(f"BlockScores.values must be float32; got {values.dtype}")
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise PluginError(
                f"BlockScores.values must be finite; {bad} of {values.numel()} are not"
            )

    @property
    def num_blocks(self) -> int:
        """Length of the block axis."""
        return int(self.values.shape[-1])

    def pooled(self) -> Tensor:
        """Mean over layers and KV heads, float32 [block] (ALGORITHMS 10.1, step 3)."""
        # A float32 mean sums some columns in another order, so that equal blocks would not tie.
        return self.values.double().mean((0, 1)).float()


@frozen
class Query:
    """What is known of one request when its blocks are chosen."""

    token_ids: tuple[int, ...]


@frozen
class Split:
    """Which blocks are pinned, which compete, and how many of those may be kept."""

    anchor: tuple[int, ...]
    mid: tuple[int, ...]
    recent: tuple[int, ...]
    mid_budget: int

    @classmethod
    def pin(cls, num_blocks: int, *, anchor: int, recent: int, mid_budget: int = 0) -> Split:
        """Pin the first `anchor` and the last `recent` blocks, none of them twice."""
        first = min(anchor, num_blocks)
        last = max(first, num_blocks - recent)
        heads, mid, tails = range(first), range(first, last), range(last, num_blocks)
        return cls(tuple(heads), tuple(mid), tuple(tails), min(mid_budget, len(mid)))

    @property
    def budget(self) -> int:
        """Blocks a request sees in all."""
        return len(self.anchor) + len(self.recent) + self.mid_budget


@frozen
class Manifest:
    """The blocks one request attends to; everything else of the cartridge is absent."""

    kept: tuple[int, ...]
    total_blocks: int
    split: Split
    stack: str
    cart_id: str
    prefix_hash: str
    scores: tuple[float, ...] | None = None  # pooled, one per block; None for a position-only stack

    @property
    def block_indices(self) -> tuple[int, ...]:
        """The serving contract's name for `kept` (DESIGN 8)."""
        return self.kept

    @property
    def skipped(self) -> tuple[int, ...]:
        """The sorted complement of `kept`."""
        kept = set(self.kept)
        return tuple(block for block in range(self.total_blocks) if block not in kept)

    @property
    def kept_fraction(self) -> float:
        """Share of the blocks that are kept; 1.0 for a cartridge without a whole block."""
        return len(self.kept) / self.total_blocks if self.total_blocks else 1.0


@frozen
class RepairPlan:
    """Which kept tokens a repair refreshes: ascending indices into the kept tokens."""

    tokens: tuple[int, ...]
    num_kept_tokens: int


RankedBlocks = Mapping[int, tuple[int, ...]]  # for each total budget its blocks, best first
Summary = Mapping[str, "Tensor"]  # what a query-aware scorer keeps in the prior
