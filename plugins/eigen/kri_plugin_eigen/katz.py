"""katz: how many paths of attention lead to a block, longer ones counting less."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from kri_core import hookimpl
from kri_plugin_eigen.block_graph_params import BlockGraphParams

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@frozen
class Params(BlockGraphParams):
    """The block graph's: see README."""


@hookimpl
def kri_watch_prefill(cartridge: Cartridge, params: Params) -> PrefillWatcher:
    """Katz centrality of the pooled block graph, [1, 1, block]."""
    from kri_plugin_eigen.centrality import katz
    from kri_plugin_eigen.graph import BlockGraph

    finish = partial(katz, lift_cap=params.lift_cap)
    return BlockGraph(cartridge.layout, params.heads, params.sinks(cartridge.layout), finish)
