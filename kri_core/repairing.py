"""What a repair measures stored KV against, and what repairing came to (ALGORITHMS 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen
from attrs.validators import ge

from kri_core.errors import ConfigError
from kri_core.types import Cartridge

if TYPE_CHECKING:
    from torch import Tensor

# A gradual repair narrows its tokens from 1.3 to 0.85 of the ratio, linearly over the layers after
# the check layer (ALGORITHMS 9.5, after CacheBlend's gradual filter, arXiv 2405.16444).
GRADUAL_FIRST, GRADUAL_LAST = Fraction("1.3"), Fraction("0.85")


@frozen
class RepairParams:
    """What must be known before a repair can be asked; its own `Params` adds to these.

    A plan of a gradual repair is its first and widest set of tokens.
    """

    reference: Literal["routed", "full", "query_first"] = "routed"
    deviation: Literal["k", "v", "kv"] = "k"  # which side of the KV is measured, on the check layer
    check_layer: int = field(default=1, validator=ge(0))
    mode: Literal["single", "gradual"] = "single"
    force_reference: bool = False  # of a trained cartridge, too

    def first_share(self, ratio: float) -> Fraction:
        """What a plan takes for a ratio: itself, or where a gradual repair starts; exact."""
        return Fraction(str(ratio)) * (GRADUAL_FIRST if self.mode == "gradual" else 1)


@frozen
class RepairReport:
    """What one repair did; deviations are squared distances, float32, on the check layer."""

    refreshed: tuple[int, ...]  # the plan: ascending indices into the kept tokens
    num_kept_tokens: int
    deviation_mean: float
    deviation_max: float
    deviation_sum: float
    share_captured: float  # of the sum, by the refreshed tokens; 0 where nothing deviates

    @classmethod
    def of(cls, deviation: Tensor, refreshed: tuple[int, ...]) -> RepairReport:
        """From the deviation of every kept token, [token], and the plan."""
        exact, count = deviation.double(), len(deviation)
        total = float(exact.sum())
        captured = float(exact[list(refreshed)].sum())
        return cls(
            refreshed,
            count,
            deviation_mean=total / count if count else 0.0,
            deviation_max=float(exact.max()) if count else 0.0,
            deviation_sum=total,
            share_captured=captured / total if total else 0.0,
        )


def repair_params(params: object) -> RepairParams:
    """A repair's own, or the defaults for one whose `Params` say nothing of a reference."""
    return params if isinstance(params, RepairParams) else RepairParams()


def check_references(cartridge: Cartridge, repairs: Sequence[RepairParams]) -> None:
    """Refuse a cartridge that no forward of its tokens can be compared with."""
    what = f"cartridge {cartridge.cart_id!r}"
    if repairs and not cartridge.token_ids:
        raise ConfigError(
            f"{what} does not know its tokens, so nothing fresh can be computed for a repair; "
            "build it from its text, or leave the repair out"
        )
    if cartridge.trained and not all(repair.force_reference for repair in repairs):
        raise ConfigError(
            f"{what} is trained, and a repair would undo that; leave the repair out, or insist "
            "with [force_reference=true]"
        )


def most_deviating(deviation: Tensor, count: int) -> tuple[int, ...]:
    """The `count` tokens of largest deviation, [token], ascending; ties go to the earlier one."""
    order = deviation.sort(descending=True, stable=True).indices
    return tuple(sorted(order[:count].tolist()))


def narrowed(first: int, step: int, steps: int) -> int:
    """How many of the `first` tokens of a gradual repair are left `step` of `steps` layers on."""
    if not first:
        return 0
    share = 1 - (1 - GRADUAL_LAST / GRADUAL_FIRST) * Fraction(step, steps)
    return max(1, math.ceil(first * share))
