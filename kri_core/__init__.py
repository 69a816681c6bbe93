"""kri-core: route KV blocks of a precomputed prefix. Everything a plugin may import is here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kri_core.calibration import Calibration
    from kri_core.config import PluginRef, RoutingConfig
    from kri_core.errors import (
        ArtifactError,
        ConfigError,
        EngineError,
        KriError,
        PluginError,
    )
    from kri_core.features import block_features, centre_means
    from kri_core.grammar import parse
    from kri_core.hookspecs import hookimpl
    from kri_core.prior import Prior, PriorMeta
    from kri_core.probe import (
        Gradients,
        PrefillChunk,
        PrefillWatcher,
        Probe,
        ProbeText,
        Readout,
    )
    from kri_core.ranking import Ranking
    from kri_core.repairing import RepairParams, most_deviating
    from kri_core.rope import Rope
    from kri_core.routing import Router
    from kri_core.types import (
        BlockScores,
        Cartridge,
        Layout,
        Manifest,
        Query,
        RepairPlan,
        Split,
        Summary,
    )

__version__ = "0.1.0"

_HOMES = {
    "errors": ("ArtifactError", "ConfigError", "EngineError", "KriError", "PluginError"),
    "types": (
        "BlockScores",
        "Cartridge",
        "Layout",
        "Manifest",
        "Query",
        "RepairPlan",
        "Split",
        "Summary",
    ),
    "ranking": ("Ranking",),
    "features": ("block_features", "centre_means"),
    "calibration": ("Calibration",),
    "prior": ("Prior", "PriorMeta"),
    "probe": ("Gradients", "PrefillChunk", "PrefillWatcher", "Probe", "ProbeText", "Readout"),
    "hookspecs": ("hookimpl",),
    "config": ("PluginRef", "RoutingConfig"),
    "grammar": ("parse",),
    "repairing": ("RepairParams", "most_deviating"),
    "rope": ("Rope",),
    "routing": ("Router",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ArtifactError",
    "BlockScores",
    "Calibration",
    "Cartridge",
    "ConfigError",
    "EngineError",
    "Gradients",
    "KriError",
    "Layout",
    "Manifest",
    "PluginError",
    "PluginRef",
    "PrefillChunk",
    "PrefillWatcher",
    "Prior",
    "PriorMeta",
    "Probe",
    "ProbeText",
    "Query",
    "Ranking",
    "Readout",
    "RepairParams",
    "RepairPlan",
    "Rope",
    "Router",
    "RoutingConfig",
    "Split",
    "Summary",
    "block_features",
    "centre_means",
    "hookimpl",
    "most_deviating",
    "parse",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kri_core' has no attribute {name!r}")
    return getattr(import_module(f"kri_core.{_HOME_OF[name]}"), name)
