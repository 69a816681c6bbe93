"""kri-g: how fast does the loss change when all keys of a block are moved together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@frozen
class Params:
    """How a block's tokens are joined, and what the loss is of: see README."""

    reduce: Literal["shift", "sum_of_norms"] = "shift"
    targets: Literal["continuation", "text"] = "continuation"


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Norm of the loss's gradient by a shift of a block's keys, [layer, kv_head, block]."""
    from kri_plugin_g.first_order import score_gradient

    return score_gradient(cartridge, probe, params.reduce, params.targets)
