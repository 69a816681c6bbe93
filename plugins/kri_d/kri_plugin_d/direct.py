"""kri-d-direct: how far does each layer's attention move when a block is left out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe) -> Tensor:
    """Mean L2 distance of what a KV head's queries add with and without each block."""
    from kri_plugin_d.closed_form import score_direct

    return score_direct(cartridge, probe)
