"""eigen: is a block tied, by attention to it or from it, to blocks that are themselves so tied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import gt, lt

from kri_core import hookimpl
from kri_plugin_eigen.block_graph_params import BlockGraphParams

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@frozen
class Params(BlockGraphParams):
    """And how much of every block is tied to every other: see README."""

    epsilon: float = field(default=0.05, validator=[gt(0), lt(1)])


@hookimpl
def kri_watch_prefill(cartridge: Cartridge, params: Params) -> PrefillWatcher:
    """Eigenvector centrality of the pooled block graph, [1, 1, block]."""
    from kri_plugin_eigen.centrality import eigen
    from kri_plugin_eigen.graph import BlockGraph

    finish = partial(eigen, lift_cap=params.lift_cap, epsilon=params.epsilon)
    return BlockGraph(cartridge.layout, params.heads, params.sinks(cartridge.layout), finish)
