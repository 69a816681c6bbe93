"""The parameters of eigen-synthq."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen
from attrs.validators import gt

from kri_plugin_eigen.eigen import Params as EigenParams

TEMPERATURE = 0.1  # of the cosine of keys, ALGORITHMS 7.4


@frozen
class SynthqParams(EigenParams):
    """And what asks in a block's name, and how sharply its mean key attends: see README."""

    queries: Literal["calibrated", "keys"] = "calibrated"
    temperature: float = field(default=TEMPERATURE, validator=gt(0))

    def __attrs_post_init__(self) -> None:
        if self.queries == "calibrated" and self.temperature != TEMPERATURE:
            raise ValueError("temperature is of queries=keys; calibrated ones have the model's")
