"""Attention written by hand, for scorers that watch a prefill: no model, a known answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kri_core.probe import PrefillChunk, PrefillWatcher

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.types import Layout

CHUNK = 5  # tokens per chunk: not a multiple of the fakes' block size


def causal_attention(logits: Tensor) -> Tensor:
    """Softmax of each row over the tokens up to its own, [..., token, key token]; 0 elsewhere."""
    later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(later, -torch.inf).softmax(-1)


def watched(watcher: PrefillWatcher, weights: Tensor, layout: Layout) -> Tensor:
    """Scores of a watcher that is shown attention weights [layer, q_head, token, key token].

    Keys are unit vectors and queries log-weights, so that `token_mass` gives the weights back. Sums
    keep the weights' dtype: in float64 they are exact where a model's float32 would not be.
    """
    tokens = weights.shape[2]
    whole = layout.num_blocks * layout.block_size
    keys = torch.eye(tokens).expand(layout.num_kv_heads, -1, -1)
    queries = weights.log().clamp(min=-1e30).float()
    for start in range(watcher.first_token, tokens, CHUNK):
        stop = min(start + CHUNK, tokens)
        for layer, rows in enumerate(weights[:, :, start:stop, :whole]):
            mass = rows.reshape(*rows.shape[:2], layout.num_blocks, layout.block_size).sum(-1)
            asked = queries[layer, :, start:stop]
            watcher.see(PrefillChunk(layer, start, asked, keys[:, :stop], 1.0, mass))
    return watcher.scores()
