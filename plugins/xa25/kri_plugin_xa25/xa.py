"""Refresh the kept tokens that deviate most, any share of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge, le

from kri_core import RepairParams, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Params(RepairParams):
    """The share of the kept tokens; 0 refreshes none."""

    ratio: float = field(default=0.25, validator=[ge(0), le(1)])


@hookimpl
def kri_plan_repair(deviation: Tensor, params: Params) -> tuple[int, ...]:
    """Plan the ⌈ratio · n⌉ tokens of largest deviation."""
    from kri_plugin_xa25.share import refreshed

    return refreshed(deviation, params.ratio, params)
