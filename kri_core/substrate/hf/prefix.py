"""A document's K and V as the attention of a probe reads them: once, contiguous, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from kri_core.types import Cartridge


@frozen(eq=False)
class Prefix:
    """K and V of the tokens of `blocks`, ascending, and then of the tail."""

    keys: tuple[Tensor, ...]  # per layer [kv_head, token, head_dim], post-RoPE
    values: tuple[Tensor, ...]  # per layer [kv_head, token, head_dim]
    blocks: tuple[int, ...]
    num_blocks: int  # of the whole document
    block_size: int

    @classmethod
    def of(
        cls,
        cartridge: Cartridge,
        dtype: torch.dtype,
        device: torch.device,
        blocks: Sequence[int] | None = None,
    ) -> Prefix:
        """A cartridge's blocks (default: all) in the model's dtype: converted, not reread bits."""
        layout = cartridge.layout

        def side(document: Tensor, tail: Tensor) -> tuple[Tensor, ...]:
            layers = zip(document, tail, strict=True)  # each [kv_head, token, head_dim]
            return tuple(torch.cat(layer, 1).to(device, dtype) for layer in layers)

        return cls(
            side(cartridge.keys(blocks), cartridge.tail[:, 0]),
            side(cartridge.values(blocks), cartridge.tail[:, 1]),
            tuple(range(layout.num_blocks) if blocks is None else blocks),
            layout.num_blocks,
            layout.block_size,
        )

    def before(self, token: int) -> Prefix:
        """The document's first tokens, without a copy; `blocks` still names all of them."""
        keys, values = (
            tuple(tensor[:, :token] for tensor in side) for side in (self.keys, self.values)
        )
        return evolve(self, keys=keys, values=values)
