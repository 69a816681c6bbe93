"""pagerank: where does a walk end up that goes from block to block as attention does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import gt, le

from kri_core import hookimpl
from kri_plugin_eigen.block_graph_params import BlockGraphParams

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@frozen
class Params(BlockGraphParams):
    """And the walk's damping, at most 0.85 (ALGORITHMS 7.2): see README."""

    damping: float = field(default=0.85, validator=[gt(0), le(0.85)])


@hookimpl
def kri_watch_prefill(cartridge: Cartridge, params: Params) -> PrefillWatcher:
    """PageRank of the pooled block graph, [1, 1, block]."""
    from kri_plugin_eigen.centrality import pagerank
    from kri_plugin_eigen.graph import BlockGraph

    finish = partial(pagerank, lift_cap=params.lift_cap, damping=params.damping)
    return BlockGraph(cartridge.layout, params.heads, params.sinks(cartridge.layout), finish)
