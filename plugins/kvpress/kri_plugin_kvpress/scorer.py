"""kvpress: would a press of NVIDIA's kvpress keep a block's tokens; written `kvpress:knorm`.

Cost: one prefill per press.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import field, frozen
from attrs.validators import ge, lt

from kri_core import hookimpl
from kri_plugin_kvpress.presses import press_name

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe


@frozen
class Params:
    """Which press, how a block is read off its tokens, and what the press is told: see README."""

    press: str = field(converter=press_name)
    pool: Literal["mean", "max", "sum"] = "mean"
    compression_ratio: float = field(default=0.5, validator=[ge(0), lt(1)])  # kvpress's README


@hookimpl
def kri_score_blocks(cartridge: Cartridge, probe: Probe, params: Params) -> Tensor:
    """The press's token scores during the document's prefill, pooled, [layer, kv_head, block]."""
    from kri_plugin_kvpress.presses import make_press
    from kri_plugin_kvpress.token_scores import score

    press = make_press(params.press, params.compression_ratio)
    return score(press, cartridge, probe.native_model, params.pool)
