"""kmeans-keys: cluster the blocks' mean keys and keep the block nearest each centre (knlp).

Cost: one pass over the keys, then O(N²) per iteration and budget; the model gives its RoPE only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from kri_core import block_features, centre_means, hookimpl
from kri_plugin_kmeans.number_lists import check_budgets, check_layers

if TYPE_CHECKING:
    from kri_core import Cartridge, Probe


@frozen
class Params:
    """For which budgets, and by the keys of which layers: numbers and ranges joined by dashes."""

    budgets: str = field(default="1..128", validator=check_budgets)
    layers: str = field(default="all", validator=check_layers)


@hookimpl
def kri_rank_blocks(
    cartridge: Cartridge, probe: Probe, params: Params
) -> dict[int, tuple[int, ...]]:
    """One clustering per budget K: the K blocks nearest their centres, largest cluster first."""
    from kri_plugin_kmeans.clustering import representatives
    from kri_plugin_kmeans.number_lists import chosen_budgets, chosen_layers

    layout = cartridge.layout
    layers = chosen_layers(params.layers, layout.num_layers)
    features = block_features(centre_means(cartridge, probe.rope)[layers])
    return representatives(features, chosen_budgets(params.budgets, layout.num_blocks))
