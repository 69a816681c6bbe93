"""attention-prefill: how much attention each block draws, against what its place would give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import field, frozen
from attrs.validators import ge

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@frozen
class Params:
    """What a sum is divided by, whether sinks count, and how many queries: see README."""

    exposure: Literal["none", "count", "lift"] = "lift"
    sink: Literal["keep", "drop"] = "keep"
    n_sink: int = field(default=4, validator=ge(0))
    window: int = field(default=0, validator=ge(0))


@hookimpl
def kri_watch_prefill(cartridge: Cartridge, params: Params) -> PrefillWatcher:
    """Block mass of all rows, divided by its exposure, [layer, kv_head, block]."""
    from kri_plugin_a.attention_mass import over_prefill

    n_sink = params.n_sink if params.sink == "drop" else 0
    return over_prefill(cartridge.layout, params.exposure, n_sink, params.window)
