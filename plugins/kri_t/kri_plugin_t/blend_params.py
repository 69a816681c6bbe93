"""The parameters of kri-t-q and kri-t-q-late."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen
from attrs.validators import ge, le

from kri_plugin_t.expected_query import Params as ExpectedQuery


@frozen
class BlendParams(ExpectedQuery):
    """And the question's share of the query, and what the question is run over: see README."""

    blend: float = field(default=0.5, validator=[ge(0), le(1)])  # ALGORITHMS 5.7
    source: Literal["layer0", "pinned", "full"] = "pinned"


@frozen
class LateBlendParams(BlendParams):
    """Layer 0 is none of the late ones."""

    source: Literal["pinned", "full"] = "pinned"
