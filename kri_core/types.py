"""The values that flow through kri-core, in the order they are made.

cartridge → scores → prior → split → manifest → repair plan. Every class is frozen and valid from
birth. Tensor axes are written as [layer, kv_head, block] and so on; docs/contract.md has them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from kri_core.errors import ArtifactError, PluginError
from kri_core.identity import ModelIdentity

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Layout:
    """How a cartridge's tokens fall into blocks.

    Block b holds tokens [b * block_size, (b + 1) * block_size). The tail, the tokens after the last
    whole block, is always attended and never scored.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_tokens: int

    def __attrs_post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ArtifactError(f"Layout.{name} must be at least 1; got {getattr(self, name)}")
        if self.num_tokens < 0:
            raise ArtifactError(f"Layout.num_tokens must not be negative; got {self.num_tokens}")

    @property
    def num_blocks(self) -> int:
        """Whole blocks; the tail is not one."""
        return self.num_tokens // self.block_size

    @property
    def tail(self) -> range:
        """Token indices after the last whole block."""
        return range(self.num_blocks * self.block_size, self.num_tokens)

    def tokens_of(self, blocks: Sequence[int]) -> list[int]:
        """Token indices of the given blocks, in the order given."""
        size = self.block_size
        return [token for block in blocks for token in range(block * size, (block + 1) * size)]

    def pool(self, per_token: Tensor) -> Tensor:
        """Mean over each block's tokens, in float32: [..., token] → [..., block].

        The token axis is the last one and may or may not include the tail, which is dropped.
        """
        whole = self.num_blocks * self.block_size
        per_token = per_token[..., :whole].float()
        return per_token.unflatten(-1, (self.num_blocks, self.block_size)).mean(-1)


@frozen(eq=False)
class Cartridge:
    """The KV cache of a document, computed once; its tensors are usually mapped from a file."""

    cart_id: str
    layout: Layout
    model: ModelIdentity
    token_ids: tuple[int, ...]
    kv: Tensor  # [block, layer, 2 (key, value), kv_head, token, head_dim], keys post-RoPE
    tail: Tensor  # [layer, 2, kv_head, token, head_dim], the tokens after the last whole block
    trained: bool  # True: optimised, so no prefill of token_ids gives this KV
    sha256: str  # of token ids, kv and tail
    prefix_hash: str  # ALGORITHMS 10.5: what the cartridge is, whatever its name
    created_at: str

    def keys(self, blocks: Sequence[int] | None = None) -> Tensor:
        """Post-RoPE keys of the given (default: all) blocks, [layer, kv_head, token, head_dim]."""
        return self._side(0, blocks)

    def values(self, blocks: Sequence[int] | None = None) -> Tensor:
        """Values of the given (default: all) blocks, [layer, kv_head, token, head_dim]."""
        return self._side(1, blocks)

    def _side(self, side: int, blocks: Sequence[int] | None) -> Tensor:
        """One index per block, so only the asked-for pages of a mapped file are read."""
        kv = self.kv[:, :, side] if blocks is None else self.kv[list(blocks), :, side]
        return kv.permute(1, 2, 0, 3, 4).flatten(2, 3)  # [layer, kv_head, token, head_dim]


@frozen(eq=False)
class BlockScores:
    """What a scorer says of each block; higher means keep."""

    values: Tensor = field()  # float32 [layer or 1, kv_head or 1, block]

    @values.validator
    def _check(self, _attribute: object, values: Tensor) -> None:
        import torch

        if not isinstance(values, torch.Tensor):
            raise PluginError(f"BlockScores.values must be a tensor; got {type(values).__name__}")
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


Summary = Mapping[str, "Tensor"]  # what a query-aware scorer keeps in the prior
