"""RoPE as complex numbers: what a scorer needs to turn keys and queries to other positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen(eq=False)
class Rope:
    """A model's rotary bands; band f of a vector at position p is turned by e^(i·inv_freq[f]·p).

    Taken from the model's own rotary module, so any RoPE scaling is in `inv_freq` and `scaling`
    (YaRN's attention factor, which stored keys and post-RoPE queries carry once each).
    """

    inv_freq: Tensor  # float64 [band], radians per position
    scaling: float
    interleaved: bool  # pairs (2f, 2f + 1) as in GPT-J; else (f, f + band) as in Llama

    def bands(self, vectors: Tensor) -> Tensor:
        """Rotated dimensions as complex numbers, [..., head_dim] → [..., band]."""
        import torch

        count = len(self.inv_freq)
        turned = vectors[..., : 2 * count].double()
        if self.interleaved:
            return torch.view_as_complex(turned.reshape(*turned.shape[:-1], count, 2))
        return torch.complex(turned[..., :count], turned[..., count:])

    def pairs(self, vectors: Tensor) -> Tensor:
        """All dimensions as complex numbers, [..., head_dim] → [..., pair]: the bands come first.

        Then the dimensions that the model does not rotate, the first half with the second.
        """
        import torch
        from torch.nn.functional import pad

        rest = vectors[..., 2 * len(self.inv_freq) :].double()
        rest = pad(rest, (0, rest.shape[-1] % 2))
        return torch.cat([self.bands(vectors), torch.complex(*rest.chunk(2, -1))], -1)

    def turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Turn vectors [..., token, head_dim] by positions [token], in the vectors' dtype.

        Negative positions undo RoPE; dimensions that the model does not rotate stay. `scaling` is
        not applied: turning is orthogonal.
        """
        import torch

        count = len(self.inv_freq)
        angle = positions.double()[:, None] * self.inv_freq  # [token, band]
        turned = self.bands(vectors) * torch.polar(torch.ones_like(angle), angle)
        pair = torch.view_as_real(turned)
        flat = pair.flatten(-2) if self.interleaved else torch.cat([pair[..., 0], pair[..., 1]], -1)
        return torch.cat([flat.to(vectors.dtype), vectors[..., 2 * count :]], -1)
