"""kri-d-kv-sum: how far do hidden states move when a block is left out, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@frozen
class Params:
    """How a distance is scaled, which layers count, and how a block is removed: see README."""

    norm: Literal["none", "relative"] = "none"
    layers: Literal["all", "last5"] = "all"
    removal: Literal["mask", "reprefill"] = "mask"


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Mean L2 distance of the residual stream with and without each block, [layer, 1, block]."""
    from kri_plugin_d.leave_one_out import score_kv_sum

    return score_kv_sum(cartridge, probe, params.norm, params.layers, params.removal)
