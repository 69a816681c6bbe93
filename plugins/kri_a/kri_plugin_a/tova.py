"""tova: what share of its attention the last token puts on each block, all heads together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@hookimpl
def kri_watch_prefill(cartridge: Cartridge) -> PrefillWatcher:
    """Block mass of the last row, mean over all query heads of a layer, [layer, 1, block]."""
    from kri_plugin_a.attention_mass import last_token_of_all_heads

    return last_token_of_all_heads(cartridge.layout)
