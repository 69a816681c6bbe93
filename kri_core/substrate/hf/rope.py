"""Taking RoPE off again, with the model's own rotary embedding and its own rotation."""

from __future__ import annotations

import sys
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from kri_core.rope import Rope


def rotary_embedding(model: nn.Module) -> nn.Module | None:
    """The module that gives cosines and sines; layers that have one each have the same."""
    parts = (part for part in model.modules() if type(part).__name__.endswith("RotaryEmbedding"))
    return next(parts, None)


@frozen(eq=False)
class Rotary:
    """A model's rotary embedding and an attention layer, whose source module has the rotation."""

    embedding: nn.Module
    attention: nn.Module

    @property
    def rope(self) -> Rope:
        """The same as plain numbers, for scorers."""
        inv_freq: Any = self.embedding.inv_freq
        scaling = float(getattr(self.embedding, "attention_scaling", 1.0))
        return Rope(inv_freq.double().cpu(), scaling, self._interleaved(len(inv_freq)))

    def _interleaved(self, bands: int) -> bool:
        """Whether a quarter turn of every band takes dimension 0 to 1, and not to `bands`."""
        vector = torch.zeros(1, 1, 1, 2 * bands)
        vector[..., 0] = 1
        cos, sin = torch.zeros(1, 1, 2 * bands), torch.ones(1, 1, 2 * bands)
        rotate: Any = sys.modules[type(self.attention).__module__].apply_rotary_pos_emb
        turned = rotate(vector, vector, cos, sin)[0]
        return bands > 1 and bool(turned[..., 1].abs() > 0.5)

    def off(self, queries: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Undo RoPE on queries [row, q_head, token, head_dim] at positions [row or 1, token].

        `dtype` is the model's, in which its cosines were rounded. They carry the attention scaling
        s (YaRN), so cos² + sin² is s² and dividing by it undoes the turn and the scaling. Only the
        leading dimensions, as many as the model rotates, are touched.
        """
        angles: Any = self.embedding(queries.new_empty(0, dtype=dtype), positions)
        cos, sin = (part.to(queries.dtype) for part in angles)
        square = cos.square() + sin.square()
        turned, rest = queries[..., : cos.shape[-1]], queries[..., cos.shape[-1] :]
        rotate: Any = sys.modules[type(self.attention).__module__].apply_rotary_pos_emb
        plain, _ = rotate(turned, turned, cos / square, -sin / square)
        return torch.cat([plain, rest], -1)
