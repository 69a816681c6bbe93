"""keydiff: a block with a key unlike the average key matters (arXiv 2504.15364).

Cost: one pass over the keys, no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kri_core import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge


@hookimpl
def kri_score_blocks(cartridge: Cartridge) -> Tensor:
    """Largest of a block's −cos(key, mean unit key), [layer, kv_head, block]."""
    from kri_plugin_kmeans.key_scores import unlikeness

    return unlikeness(cartridge)
