"""What a plugin's own tests import: a contract per slot, and a model small enough to follow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kri_core.testing.attention import causal_attention, watched
    from kri_core.testing.fake_model import FakeModel, cartridge_of
    from kri_core.testing.fake_probe import FakeProbe
    from kri_core.testing.planted import is_noticed, plant_bug
    from kri_core.testing.repair import RepairContract
    from kri_core.testing.scorer import ScorerContract
    from kri_core.testing.selector import SelectorContract
    from kri_core.testing.split import SplitContract

_HOME_OF = {
    "FakeModel": "fake_model",
    "FakeProbe": "fake_probe",
    "RepairContract": "repair",
    "ScorerContract": "scorer",
    "SelectorContract": "selector",
    "SplitContract": "split",
    "cartridge_of": "fake_model",
    "causal_attention": "attention",
    "is_noticed": "planted",
    "plant_bug": "planted",
    "watched": "attention",
}

__all__ = [
    "FakeModel",
    "FakeProbe",
    "RepairContract",
    "ScorerContract",
    "SelectorContract",
    "SplitContract",
    "cartridge_of",
    "causal_attention",
    "is_noticed",
    "plant_bug",
    "watched",
]


def __getattr__(name: str) -> object:
    """Import on first use: a split's contract needs no torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kri_core.testing' has no attribute {name!r}")
    return getattr(import_module(f"kri_core.testing.{_HOME_OF[name]}"), name)
