"""An attention-only transformer of a few thousand weights: causal, grouped-query, RoPE.

Written for reading, one row at a time, so that tests have a model they can follow by hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from kri_core.artifacts.tensors import dtype_name
from kri_core.identity import ModelIdentity, prefix_hash
from kri_core.types import Cartridge, Layout

ROPE_THETA = 10_000.0


@frozen(eq=False)
class Trace:
    """Everything one run of P tokens computed."""

    hidden: Tensor  # [layer, token, dim], after each layer
    logits: Tensor  # [token, vocab]
    pre_rope_queries: Tensor  # [layer, q_head, token, head_dim]
    queries: Tensor  # [layer, q_head, token, head_dim]
    keys: Tensor  # [layer, kv_head, token, head_dim], of these tokens, post-RoPE
    values: Tensor  # [layer, kv_head, token, head_dim], of these tokens
    weights: Tensor  # [layer, q_head, token, past token + token]
    outputs: Tensor  # [layer, q_head, token, head_dim], before the output projection


@frozen(eq=False)
class FakeModel:
    """Weights by axis; `FakeModel.random()` draws them."""

    embedding: Tensor  # [vocab, dim]
    query: Tensor  # [layer, q_head, dim, head_dim]
    key: Tensor  # [layer, kv_head, dim, head_dim]
    value: Tensor  # [layer, kv_head, dim, head_dim]
    output: Tensor  # [layer, q_head, head_dim, dim]

    @classmethod
    def random(
        cls, seed: int = 0, num_layers: int = 3, dtype: torch.dtype = torch.float32
    ) -> FakeModel:
        """4 query heads over 2 KV heads of 8 dimensions, 32 in the residual stream, 64 tokens."""
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.float64).mul(0.3).to(dtype)

        return cls(
            embedding=normal(64, 32),
            query=normal(num_layers, 4, 32, 8),
            key=normal(num_layers, 2, 32, 8),
            value=normal(num_layers, 2, 32, 8),
            output=normal(num_layers, 4, 8, 32),
        )

    def layout(self, block_size: int, num_tokens: int) -> Layout:
        """The layout of a cartridge this model makes."""
        layers, kv_heads, _, head_dim = self.key.shape
        return Layout(layers, kv_heads, head_dim, block_size, num_tokens)

    def run(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        past: tuple[Tensor, Tensor] | None = None,
        visible: Tensor | None = None,
        nudges: tuple[Tensor, Tensor] | None = None,
    ) -> Trace:
        """Run tokens at positions over past keys and values, [layer, kv_head, token, head_dim].

        `visible` is bool [past token]; what is invisible gets logit −inf. `nudges` are added to
        all keys attended to, [layer, kv_head, past token + token, head_dim], and to `outputs`.
        """
        none = self.key.new_zeros(*self.key.shape[:2], 0, self.key.shape[-1])
        past_keys, past_values = past or (none, none)
        if visible is None:
            visible = torch.ones(past_keys.shape[2], dtype=torch.bool)
        causal = torch.ones(len(token_ids), len(token_ids), dtype=torch.bool).tril()
        allowed = torch.cat([visible.expand(len(token_ids), -1), causal], -1)
        stream = self.embedding[list(token_ids)]  # [token, dim]
        steps = []
        for layer in range(self.key.shape[0]):
            nudge = None if nudges is None else (nudges[0][layer], nudges[1][layer])
            stream, *rest = self._layer(
                layer, stream, positions, (past_keys[layer], past_values[layer]), allowed, nudge
            )
            steps.append((stream, *rest))
        hidden, *others = (torch.stack(step) for step in zip(*steps, strict=True))
        return Trace(hidden, _normed(stream) @ self.embedding.T, *others)

    def _layer(
        self,
        layer: int,
        stream: Tensor,
        positions: Sequence[int],
        past: tuple[Tensor, Tensor],
        allowed: Tensor,
        nudge: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        inputs = _normed(stream)
        unrotated = inputs @ self.query[layer]  # [q_head, token, head_dim]
        queries = rotated(unrotated, positions)
        keys = rotated(inputs @ self.key[layer], positions)  # [kv_head, token, head_dim]
        values = inputs @ self.value[layer]
        group = queries.shape[0] // keys.shape[0]
        all_keys = torch.cat([past[0], keys], 1)
        if nudge is not None:
            all_keys = all_keys + nudge[0]
        all_keys = all_keys.repeat_interleave(group, 0)
        all_values = torch.cat([past[1], values], 1).repeat_interleave(group, 0)
        logits = queries @ all_keys.mT / keys.shape[-1] ** 0.5  # [q_head, token, key token]
        weights = logits.masked_fill(~allowed, float("-inf")).softmax(-1)
        outputs = weights @ all_values  # [q_head, token, head_dim]
        if nudge is not None:
            outputs = outputs + nudge[1]
        stream = stream + (outputs @ self.output[layer]).sum(0)
        return stream, unrotated, queries, keys, values, weights, outputs

    def cartridge(
        self,
        token_ids: Sequence[int],
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        cart_id: str = "fake",
    ) -> Cartridge:
        """Prefill a document and keep its KV as a cartridge."""
        trace = self.run(token_ids, range(len(token_ids)))
        kv = torch.stack([trace.keys, trace.values], 1).to(dtype)
        return cartridge_of(self.layout(block_size, len(token_ids)), kv, token_ids, cart_id)


def cartridge_of(
    layout: Layout, kv: Tensor, token_ids: Sequence[int], cart_id: str = "fake"
) -> Cartridge:
    """A cartridge of any KV, [layer, 2 (key, value), kv_head, token, head_dim]."""
    whole = layout.num_blocks * layout.block_size
    blocks = kv[:, :, :, :whole].reshape(
        *kv.shape[:3], layout.num_blocks, layout.block_size, layout.head_dim
    )
    model = ModelIdentity("fake", architecture="FakeModel")
    content = hashlib.sha256(repr((token_ids, kv.flatten().tolist())).encode())
    return Cartridge(
        cart_id=cart_id,
        layout=layout,
        model=model,
        token_ids=tuple(token_ids),
        kv=blocks.permute(3, 0, 1, 2, 4, 5).contiguous(),
        tail=kv[:, :, :, whole:].contiguous(),
        trained=False,
        sha256=content.hexdigest(),
        prefix_hash=prefix_hash(model, layout.block_size, dtype_name(kv), token_ids),
        created_at="2000-01-01T00:00:00+00:00",
    )


def rotated(vectors: Tensor, positions: Sequence[int]) -> Tensor:
    """RoPE over the halves of the last axis, [..., token, head_dim]."""
    half = vectors.shape[-1] // 2
    frequency = ROPE_THETA ** (-torch.arange(half, dtype=vectors.dtype) / half)
    angle = torch.tensor(list(positions), dtype=vectors.dtype)[:, None] * frequency
    first, second = vectors[..., :half], vectors[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _normed(stream: Tensor) -> Tensor:
    return stream * (stream.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
