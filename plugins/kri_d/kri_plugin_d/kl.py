"""kri-d: how much does the next-token distribution change when a block is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@frozen
class Params:
    """How a block is removed, and after which probe tokens its absence is read: see README."""

    removal: Literal["mask", "reprefill"] = "mask"
    readout: Literal["last", "all"] = "last"


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """KL(full ‖ left out) after the probe tokens of the readout, [1, 1, block]."""
    from kri_plugin_d.leave_one_out import score_kl

    return score_kl(cartridge, probe, params.removal, params.readout)
