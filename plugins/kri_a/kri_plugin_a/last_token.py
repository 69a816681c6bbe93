"""kri-a: what share of its attention the document's last token puts on each block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@hookimpl
def kri_watch_prefill(cartridge: Cartridge) -> PrefillWatcher:
    """Block mass of the last row, mean over each group, [layer, kv_head, block]."""
    from kri_plugin_a.attention_mass import last_token

    return last_token(cartridge.layout)
