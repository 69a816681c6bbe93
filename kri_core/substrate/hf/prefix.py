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
        held = tuple(range(layout.num_blocks)) if blocks is None else tuple(blocks)

        def side(layer: int, which: int) -> Tensor:
            every = cartridge.kv[:, layer, which]  # [block, kv_head, token, head_dim]
            some = every if blocks is None else every[list(held)]
            whole = torch.cat([some.transpose(0, 1).flatten(1, 2), cartridge.tail[layer, which]], 1)
            return whole.to(device, dtype)

        keys, values = (
            tuple(side(layer, which) for layer in range(layout.num_layers)) for which in (0, 1)
        )
        return cls(keys, values, held, layout.num_blocks, layout.block_size)

    def before(self, token: int) -> Prefix:
        """The document's first tokens, without a copy; `blocks` still names all of them."""
        keys, values = (
            tuple(tensor[:, :token] for tensor in side) for side in (self.keys, self.values)
        )
        return evolve(self, keys=keys, values=values)
