"""Refresh the 15 % of the kept tokens that deviate most: CacheBlend's average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from kri_core import RepairParams, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

RATIO = 0.15


@frozen
class Params(RepairParams):
    """The name fixes the share."""


@hookimpl
def kri_plan_repair(deviation: Tensor, params: Params) -> tuple[int, ...]:
    """Plan the ⌈0.15 · n⌉ tokens of largest deviation."""
    from kri_plugin_xa25.share import refreshed

    return refreshed(deviation, RATIO, params)
