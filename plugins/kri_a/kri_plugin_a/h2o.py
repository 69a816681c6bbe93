"""h2o: how much attention each block draws from all of the document's tokens together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@hookimpl
def kri_watch_prefill(cartridge: Cartridge) -> PrefillWatcher:
    """Block mass summed over all rows, mean over each group, [layer, kv_head, block]."""
    from kri_plugin_a.attention_mass import heavy_hitters

    return heavy_hitters(cartridge.layout)
