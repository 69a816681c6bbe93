"""Refresh the share ρ of the kept tokens whose stored KV deviates most from fresh KV.

Source: CacheBlend, arXiv 2405.16444; `xa25` is upstream's name for ρ = 0.25 and check layer 1. Cost
per request: (check_layer + 1) / layers · n + ρ · n token-forwards for n kept tokens; the reference
`full` costs a prefill.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kri_core import most_deviating

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import RepairParams


def refreshed(deviation: Tensor, ratio: float, params: RepairParams) -> tuple[int, ...]:
    """The plan for a deviation, [token]: ascending; ties go to the earlier token.

    ⌈ρ·n⌉ tokens: for ρ > 0 one at least, if there is one, and for ρ = 0 none. The product is exact:
    0.07 of 100 tokens are 7, and not the 8 that floating point makes of it.
    """
    count = math.ceil(params.first_share(ratio) * len(deviation))
    return most_deviating(deviation, count)
