"""What each block alone adds to the pins: f(pins ∪ {b}) − f(pins), f = −KL(all blocks ‖ visible).

ALGORITHMS 11.B. Cost: one row of every probe text per mid block, N·P token-forwards, over the pins
and a batch of blocks. f(pins) is the same for all, so it ranks nothing and is not computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kri_core import ConfigError, EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Probe, Split

NAME = "solo/1"  # raise the number when a divergence changes its meaning
TIE = 1e-5  # nats; another batch size moved divergences by up to 8e-7 (SmolLM2-135M, float32)


def most_telling_alone(probe: Probe | None, split: Split) -> tuple[int, ...]:
    """Mid blocks, the one with the largest gain first; within TIE of it, the earliest."""
    if probe is None:
        raise ConfigError(
            "solo runs the model to choose blocks, and none is at hand; give one with --model"
        )
    left = dict(zip(split.mid, divergences(probe, split), strict=True))
    chosen: list[int] = []
    while len(chosen) < split.mid_budget:
        best = min(left.values())
        chosen.append(next(block for block, value in left.items() if value <= best + TIE))
        del left[chosen[-1]]
    return tuple(chosen)


def divergences(probe: Probe, split: Split) -> list[float]:
    """KL(all ‖ pins and one mid block) after each probe text, their mean; one per mid block."""
    pins = [*split.anchor, *split.recent]
    num_blocks = len(pins) + len(split.mid)
    every = torch.ones(1, num_blocks, dtype=torch.bool)
    full = [_last(probe, text.token_ids, every) for text in probe.texts]  # each [1, vocab]

    def run(blocks: Sequence[int]) -> Tensor:
        """One row [] per block."""
        visible = torch.zeros(len(blocks), num_blocks, dtype=torch.bool)
        visible[:, pins] = True
        visible[range(len(blocks)), list(blocks)] = True
        total = torch.zeros(len(blocks), dtype=torch.float64)
        for text, whole in zip(probe.texts, full, strict=True):
            part = _last(probe, text.token_ids, visible)
            total += (whole.exp() * (whole - part)).sum(-1)
        return total / len(full)

    asked = repr(([text.token_ids for text in probe.texts], sorted(pins)))
    name = f"{NAME}/{hashlib.sha256(asked.encode()).hexdigest()}"
    values = probe.each(name, split.mid, run)
    if not bool(values.isfinite().all()):
        raise EngineError("solo: the model's logits are not finite; run it with --dtype float32")
    return values.tolist()


def _last(probe: Probe, token_ids: Sequence[int], visible: Tensor) -> Tensor:
    """Log-probabilities of the token after a text, float64 [row, vocab]."""
    logits = probe.forward(token_ids, read=("logits",), visible=visible, last=1).logits
    assert logits is not None  # noqa: S101 - it was asked for
    # float64: KL is a small sum of large terms that cancel.
    return logits[:, -1].double().log_softmax(-1)
