"""A document's KV cache and how its tokens fall into blocks; kri_core.types gives both names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity
from kri_core.paging import prefetch

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

    @property
    def values_per_token(self) -> int:
        """Numbers one token holds: keys and values of every layer and KV head."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

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
        return per_token.reshape(*per_token.shape[:-1], self.num_blocks, self.block_size).mean(-1)


@frozen(eq=False)
class Cartridge:
    """The KV cache of a document, computed once; its tensors are usually mapped from a file."""

    cart_id: str
    layout: Layout
    model: ModelIdentity
    token_ids: tuple[int, ...]  # empty where they are not known (an imported cartridge)
    kv: Tensor  # [block, layer, 2 (key, value), kv_head, token, head_dim], keys post-RoPE
    tail: Tensor  # [layer, 2, kv_head, token, head_dim], the tokens after the last whole block
    trained: bool  # True: optimised, so no prefill of token_ids gives this KV
    sha256: str  # of token ids, kv and tail
    prefix_hash: str  # ALGORITHMS 10.5: what the cartridge is, whatever its name
    created_at: str

    def __attrs_post_init__(self) -> None:
        layout = self.layout
        heads = (layout.num_layers, 2, layout.num_kv_heads)
        blocks = (layout.num_blocks, *heads, layout.block_size, layout.head_dim)
        self._check_shape("kv", "block, layer, 2, kv_head, token, head_dim", blocks)
        tail = (*heads, len(layout.tail), layout.head_dim)
        self._check_shape("tail", "layer, 2, kv_head, token, head_dim", tail)
        if self.kv.dtype != self.tail.dtype:
            raise ArtifactError(
                f"Cartridge.kv and .tail must have one dtype; got {self.kv.dtype} and "
                f"{self.tail.dtype}"
            )
        if len(self.token_ids) not in (0, layout.num_tokens):
            raise ArtifactError(
                f"Cartridge.token_ids must be one per token or none at all; got "
                f"{len(self.token_ids)} for {layout.num_tokens} tokens"
            )

    def _check_shape(self, name: str, axes: str, wanted: tuple[int, ...]) -> None:
        found = tuple(getattr(self, name).shape)
        if found != wanted:
            raise ArtifactError(
                f"Cartridge.{name} must be [{axes}], here {list(wanted)}; got shape {list(found)}"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of all KV, tail included."""
        return self.layout.values_per_token * self.layout.num_tokens * self.kv.element_size()

    def keys(self, blocks: Sequence[int] | None = None) -> Tensor:
        """Post-RoPE keys of the given (default: all) blocks, [layer, kv_head, token, head_dim]."""
        return self._side(0, blocks)

    def values(self, blocks: Sequence[int] | None = None) -> Tensor:
        """Values of the given (default: all) blocks, [layer, kv_head, token, head_dim]."""
        return self._side(1, blocks)

    def _side(self, side: int, blocks: Sequence[int] | None) -> Tensor:
        """One copy, block by block, so only the asked-for pages of a mapped file are read.

        A block's keys and values lie together: both are fetched, whichever is asked for first.
        """
        if blocks is None:
            return self.kv[:, :, side].permute(1, 2, 0, 3, 4).flatten(2, 3)
        import torch

        chosen = [self.kv[block] for block in blocks]  # each [layer, 2, kv_head, token, head_dim]
        prefetch(chosen)
        none = self.tail[:, side, :, :0]  # cat needs one part at least
        return torch.cat([none, *(block[:, side] for block in chosen)], 2)
