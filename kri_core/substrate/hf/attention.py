"""Attention of several rows of new tokens over one document's K and V, held once.

The rows and the query heads of a group become the rows of one matrix product per KV head, so the
document's keys are never copied per row. A block that a row may not see has logit −inf: it is
absent. Softmax and sums are float32 (float64 for a float64 model), whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from attrs import field, frozen
from torch import Tensor
from torch.nn.functional import pad

from kri_core.substrate.hf.interface import AttentionCall
from kri_core.substrate.hf.prefix import Prefix

# The most that the scores and the weights of one step take each, unless one token's are more. On a
# CPU they should stay in the cache: 4 MiB took 7.2 ms where 11 MiB took 12.0 (144 new tokens in 9
# heads over 2 048 tokens, one core).
SCORE_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}

# Called once per layer: what the layer asked for; where wanted, the block masses, float32
# [row, q_head, token, block]; and the answer before it is rounded, [row, q_head, token, head_dim].
Observe = Callable[[AttentionCall, Tensor | None, Tensor], None]


@frozen(eq=False)
class PrefixAttention:
    """An `Attend`: every row sees its visible blocks, the tail, and its own tokens causally."""

    prefix: Prefix
    visible: Tensor | None = None  # bool [row, one per block the prefix holds]; None: all
    hidden: Tensor | None = None  # bool [token, own token] beside the later ones; None: no other
    observe: Observe | None = None
    with_mass: bool = False
    bias: Tensor | None = field(init=False)  # float32 [row, prefix token], −inf where invisible

    @bias.default
    def _bias(self) -> Tensor | None:
        """Adding a bias took an eighth of the time of filling with a mask."""
        if self.visible is None or bool(self.visible.all()):
            return None
        hidden = (~self.visible).repeat_interleave(self.prefix.block_size, 1)
        bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)
        return pad(bias, (0, self.prefix.keys[0].shape[1] - bias.shape[1]))

    def __call__(self, call: AttentionCall) -> Tensor:
        """One layer's [row, q_head, token, head_dim], in the query's dtype."""
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        query = _grouped(call.query.to(dtype) * call.scaling, call.key.shape[1])
        keys, own_keys = self.prefix.keys[call.layer].to(dtype), call.key.to(dtype)
        values, own_values = self.prefix.values[call.layer].to(dtype), call.value.to(dtype)
        out = torch.empty_like(query)  # [row, kv_head, group, token, head_dim]
        blocks = self.prefix.num_blocks if self.with_mass else 0
        mass: Tensor = query.new_empty(*query.shape[:-1], blocks)
        for row, token in _steps(query, keys.shape[1]):
            piece, seen = query[row, :, :, token], slice(token.stop)
            bias = None if self.bias is None else self.bias[row]
            scores = _scores(piece, keys, own_keys[row, :, seen], bias, self._unseen(token))
            weights = torch.softmax(scores, -1)
            out[row, :, :, token] = _mix(weights, values, own_values[row, :, seen], piece.shape)
            if self.with_mass:
                mass[row, :, :, token] = self._pool(weights, piece.shape)
        if self.observe is not None:
            masses = mass.flatten(1, 2).float() if self.with_mass else None
            self.observe(call, masses, out.flatten(1, 2))
        return out.flatten(1, 2).to(call.query.dtype)

    def _unseen(self, token: slice) -> Tensor:
        """Own tokens that some tokens do not see, bool [token, own token up to the last]."""
        own = torch.arange(token.stop, device=self.prefix.keys[0].device)
        later = own > own[token, None]
        return later if self.hidden is None else later | self.hidden[token, : token.stop]

    def _pool(self, weights: Tensor, shape: torch.Size) -> Tensor:
        """Block sums [row, kv_head, group, token, block] of weights over the document's columns.

        Columns are the prefix's tokens, then the row's own. A row's own tokens are the document's
        only while the document is prefilled, block by block: then the prefix has no tail yet.
        """
        size, held = self.prefix.block_size, self.prefix.blocks
        columns = weights[..., : len(held) * size]
        if short := -columns.shape[-1] % size:
            columns = pad(columns, (0, short))
        sums = columns.reshape(*columns.shape[:-1], columns.shape[-1] // size, size).sum(-1)
        missing = self.prefix.num_blocks - sums.shape[-1]
        if len(held) < self.prefix.num_blocks:
            mass = sums.new_zeros(*sums.shape[:-1], self.prefix.num_blocks)
            mass[..., list(held)] = sums
        else:
            mass = pad(sums, (0, missing)) if missing else sums
        rows, kv_heads, group, tokens, _ = shape
        return mass.view(kv_heads, rows, group, tokens, self.prefix.num_blocks).transpose(0, 1)


def _grouped(query: Tensor, kv_heads: int) -> Tensor:
    """[row, q_head, ...] as [row, kv_head, group, ...]: a KV head's query heads are neighbours."""
    rows, q_heads, tokens, head_dim = query.shape
    return query.reshape(rows, kv_heads, q_heads // kv_heads, tokens, head_dim)


def _steps(query: Tensor, past: int) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and tokens: whole rows if one's scores fit, else some tokens of one row."""
    rows, kv_heads, group, tokens, _ = query.shape
    per_token = kv_heads * group * (past + tokens) * query.element_size()
    fit = max(1, SCORE_BYTES[query.device.type] // per_token)
    many, some = max(1, fit // tokens), min(fit, tokens)
    for row in range(0, rows, many):
        for token in range(0, tokens, some):
            yield slice(row, min(row + many, rows)), slice(token, min(token + some, tokens))


def _scores(
    query: Tensor, keys: Tensor, own_keys: Tensor, bias: Tensor | None, unseen: Tensor
) -> Tensor:
    """Logits [kv_head, row · group · token, prefix token + own token]."""
    rows, kv_heads, group, tokens, _ = query.shape
    past, own = keys.shape[1], own_keys.shape[2]
    folded = query.transpose(0, 1).flatten(1, 3)  # [kv_head, row · group · token, head_dim]
    scores = query.new_empty(kv_heads, folded.shape[1], past + own)
    torch.bmm(folded, keys.mT, out=scores[..., :past])
    by_row = scores.view(kv_heads, rows, group * tokens, past + own)
    if bias is not None:
        by_row[..., :past] += bias[:, None]
    mine = query.flatten(2, 3) @ own_keys.mT  # [row, kv_head, group · token, own token]
    mine.masked_fill_(unseen.repeat(group, 1), -torch.inf)
    by_row[..., past:] = mine.transpose(0, 1)
    return scores


def _mix(weights: Tensor, values: Tensor, own_values: Tensor, shape: torch.Size) -> Tensor:
    """Values weighted, [row, kv_head, group, token, head_dim]."""
    rows, kv_heads, group, tokens, _ = shape
    past = values.shape[1]
    from_prefix = torch.bmm(weights[..., :past], values)
    by_row = weights.view(kv_heads, rows, group * tokens, -1)[..., past:].transpose(0, 1)
    mixed = from_prefix.view(kv_heads, rows, group * tokens, -1).transpose(0, 1)
    return (mixed + by_row @ own_values).view(shape)
