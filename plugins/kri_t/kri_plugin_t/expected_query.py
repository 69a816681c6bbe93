"""kri-t: how strongly would a typical query after the document attend to a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import field, frozen
from attrs.validators import ge

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe

READS_CALIBRATION = True


@frozen
class Params:
    """How a block's tokens are pooled, and how far ahead a query may stand: see README."""

    pool: Literal["topm", "max", "lse", "mean"] = "topm"
    m: int = field(default=4, validator=ge(1))  # tokens that topm averages
    max_offset: int = field(default=65_536, validator=ge(1))  # the paper's; 4096 did better there


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """Expected logits, z-scored, of the most interested query head, pooled to each block.

    [layer, kv_head, block]; refused without the model's calibration.
    """
    from kri_plugin_t.trigonometry import score_blocks

    return score_blocks(cartridge, probe, params)
