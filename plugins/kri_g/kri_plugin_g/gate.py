"""kri-g-gate: how much does the loss change, to first order, when a block is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@frozen
class Params:
    """Whether a block that harms counts as 0 or by its size, and what the loss is of."""

    sign: Literal["positive", "absolute"] = "positive"
    targets: Literal["continuation", "text"] = "continuation"


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Change of the loss when a KV head does not see a block, [layer, kv_head, block]."""
    from kri_plugin_g.first_order import score_gate

    return score_gate(cartridge, probe, params.sign, params.targets)
