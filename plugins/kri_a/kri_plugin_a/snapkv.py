"""snapkv: which earlier tokens do the document's last ones look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge

from kri_core import ConfigError, hookimpl

if TYPE_CHECKING:
    from kri_core import Cartridge, PrefillWatcher


@frozen
class Params:
    """Queries that look, and how many neighbouring tokens share what they see: see README."""

    window: int = field(default=64, validator=ge(1))  # kvpress's, ALGORITHMS 11.A
    kernel: int = field(default=5, validator=ge(1))

    def __attrs_post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ConfigError(f"'snapkv': kernel must be odd, to have a middle; got {self.kernel}")


@hookimpl
def kri_watch_prefill(cartridge: Cartridge, params: Params) -> PrefillWatcher:
    """Smoothed mass of the window's rows, its own blocks above all others, [layer, kv_head, …]."""
    from kri_plugin_a.observation_window import ObservationWindow

    return ObservationWindow(cartridge.layout, params.window, params.kernel)
