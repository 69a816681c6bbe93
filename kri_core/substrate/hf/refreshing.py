"""Passes over kept tokens that rewrite the KV of those a plan names, layer by layer.

Up to the check layer every kept token is computed; in later layers only the planned ones are. The
model's own forward does it: `cutting` takes out what is not computed any more before a decoder
layer gets it, and attention comes through `interface`. The passes of several requests stand one
after the other in one row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import Factory, field, frozen
from torch import Tensor

from kri_core.repairing import RepairParams, most_deviating, narrowed
from kri_core.substrate.hf.attention import SCORE_BYTES
from kri_core.substrate.hf.interface import AttentionCall
from kri_core.substrate.hf.prefix import Prefix
from kri_core.types import RepairPlan

Plan = Callable[[Tensor], RepairPlan]  # of the deviation, float32 [token], on the CPU
Pair = tuple[Tensor, Tensor]  # keys and values, each [kv_head, token, head_dim]


def squared_distance(fresh: Tensor, stored: Tensor) -> Tensor:
    """Over KV heads and dimensions, [kv_head, token, head_dim] twice → float32 [token]."""
    return (fresh.float() - stored.float()).square().sum((0, 2))


@frozen(eq=False)
class Refresh:
    """Blended KV in the making: fresh rows where the plan says so; `stored` is not changed."""

    stored: Prefix
    params: RepairParams
    plan: Plan
    keys: list[Tensor] = field()  # per layer [kv_head, token, head_dim]
    values: list[Tensor] = field()
    rows: list[Tensor] = field()  # the kept tokens being computed; the last entry is in force
    deviation: list[Tensor] = Factory(list)  # one entry, once the check layer is through
    early: list[Pair] = Factory(list)  # fresh rows below the check layer, until there is a plan

    @keys.default
    def _stored_keys(self) -> list[Tensor]:
        return list(self.stored.keys)

    @values.default
    def _stored_values(self) -> list[Tensor]:
        return list(self.stored.values)

    @rows.default
    def _all(self) -> list[Tensor]:
        return [torch.arange(self.stored.keys[0].shape[1], device=self.stored.keys[0].device)]

    def take(self, layer: int, fresh: Pair) -> None:
        """Fresh KV of the rows in force, one layer after the other."""
        check = self.params.check_layer
        if layer < check:
            self.early.append(fresh)
        elif layer == check:
            self.settle(self._distance(layer, fresh).cpu())
            for below, pair in enumerate((*self.early, fresh)):
                self._write(below, tokens_at(pair, self.rows[-1]))
            self.early.clear()
        else:
            self._write(layer, fresh)
            if self.params.mode == "gradual":
                self._narrow(layer, self._distance(layer, fresh))

    def settle(self, deviation: Tensor) -> None:
        """The plan by the deviation of every kept token, float32 [token]."""
        self.deviation.append(deviation)
        self.rows.append(self.rows[0].new_tensor(self.plan(deviation).tokens))

    def _distance(self, layer: int, fresh: Pair) -> Tensor:
        """Of the rows in force, float32 [row]."""
        stored = tokens_at((self.stored.keys[layer], self.stored.values[layer]), self.rows[-1])
        sides = {"k": (0,), "v": (1,), "kv": (0, 1)}[self.params.deviation]
        return torch.stack([squared_distance(fresh[it], stored[it]) for it in sides]).sum(0)

    def _write(self, layer: int, fresh: Pair) -> None:
        for held, rows in zip((self.keys, self.values), fresh, strict=True):
            held[layer] = held[layer].index_copy(1, self.rows[-1], rows.to(held[layer].dtype))

    def _narrow(self, layer: int, deviation: Tensor) -> None:
        """Tokens that leave keep what was written."""
        step, steps = layer - self.params.check_layer, len(self.keys) - self.params.check_layer - 2
        if step <= steps:
            count = narrowed(len(self.rows[1]), step, steps)
            self.rows.append(self.rows[-1][list(most_deviating(deviation, count))])


def tokens_at(pair: Pair, rows: Tensor) -> Pair:
    """Some tokens of keys and values."""
    return pair[0][:, rows], pair[1][:, rows]


@frozen(eq=False)
class BlendedAttention:
    """An `Attend`: a row sees what stands before it, by true position, and no other kept token.

    `order` is the position of every token of the pass; a question that all the document is to see
    stands before it, at negative numbers. Keys are fresh up to the check layer, then blended.
    """

    refresh: Refresh
    order: Tensor  # [question token + kept token]
    lead: int  # question tokens

    @property
    def places(self) -> Tensor:
        """The tokens of the pass to compute: the question's and the rows in force, if any is."""
        rows = self.refresh.rows[-1]
        if not len(rows):
            return rows
        return torch.cat([torch.arange(self.lead, device=rows.device), self.lead + rows])

    def count(self) -> int:
        """How many they are."""
        return len(self.places)

    def __call__(self, call: AttentionCall) -> Tensor:
        """One layer's [1, q_head, row, head_dim], in the query's dtype."""
        places, lead, layer = self.places, self.lead, call.layer
        if not len(places):
            return call.query
        keys, values = call.key[0], call.value[0]  # [kv_head, row, head_dim]
        self.refresh.take(layer, (keys[:, lead:], values[:, lead:]))
        if layer > self.refresh.params.check_layer:
            keys = torch.cat([keys[:, :lead], self.refresh.keys[layer]], 1)
            values = torch.cat([values[:, :lead], self.refresh.values[layer]], 1)
        visible = self.order <= self.order[places][:, None]  # [row, token], by true position
        return _attend(call.query[0], (keys, values), visible, call.scaling)[None]


def _attend(query: Tensor, pair: Pair, visible: Tensor, scaling: float) -> Tensor:
    """Softmax attention in float32 at least, [q_head, row, head_dim], a few rows at a time."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    keys, values = (side.to(dtype) for side in pair)
    heads, count, head_dim = query.shape
    grouped = (query.to(dtype) * scaling).reshape(len(keys), -1, count, head_dim)
    out = torch.empty_like(grouped)  # [kv_head, group, row, head_dim]
    per_row = heads * keys.shape[1] * keys.element_size()
    step = max(1, SCORE_BYTES[query.device.type] // per_row)
    for first in range(0, count, step):
        some = slice(first, min(first + step, count))
        scores = grouped[:, :, some] @ keys.mT[:, None]  # [kv_head, group, row, token]
        scores.masked_fill_(~visible[some], -torch.inf)
        out[:, :, some] = scores.softmax(-1) @ values[:, None]
    return out.reshape(heads, count, head_dim).to(query.dtype)
