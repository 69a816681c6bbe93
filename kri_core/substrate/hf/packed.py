"""Attention of tokens that stand in one row, but are parts which do not see each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve, frozen
from torch import Tensor

from kri_core.errors import EngineError
from kri_core.substrate.hf.interface import Attend, AttentionCall

Part = tuple[Callable[[], int], Attend]  # how many tokens a layer computes, and by what


@frozen(eq=False)
class PackedAttention:
    """An `Attend` of one row: each part's tokens are computed by that part's own."""

    parts: tuple[Part, ...]  # in the order of the row

    def __call__(self, call: AttentionCall) -> Tensor:
        """One layer's [1, q_head, token, head_dim], in the query's dtype."""
        done, first = [], 0
        for count, attend in self.parts:
            own = slice(first, first + count())
            sides = {name: getattr(call, name)[:, :, own] for name in ("query", "key", "value")}
            done.append(attend(evolve(call, **sides)))
            first = own.stop
        if first != call.query.shape[2]:
            raise EngineError(
                f"layer {call.layer} computed {call.query.shape[2]} tokens where {first} were "
                "left to compute; leave the repair out for this model"
            )
        return torch.cat(done, 2)
