"""Add one block at a time, each time the one that brings the model nearest to the whole document.

Greedy forward selection by KL (ALGORITHMS 11.B; upstream's oracle, with the KL the other way). The
first of two copies gets all the gain and the second next to none, the opposite of leave-one-out.
Cost: in each of K steps one row of every probe text per mid block that is left, at most K·N·P
token-forwards, each over the kept blocks and a batch of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from attrs import frozen

from kri_core import ConfigError, EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Probe, Split

Direction = Literal["forward", "reverse"]
NAME = "kri-d-greedy/1"  # raise the number when a divergence changes its meaning
TIE = 1e-5  # nats; another batch size moved divergences by up to 8e-7 (SmolLM2-135M, float32)


def most_agreeing(probe: Probe | None, split: Split, direction: Direction) -> tuple[int, ...]:
    """Mid blocks in the order chosen; within TIE of the best, the earliest.

    Gains may grow as blocks are added, because softmax shares the attention out anew: a block that
    does harm alone can be the best third one. So every block is tried in every step.
    """
    if probe is None:
        raise ConfigError(
            "kri-d-greedy runs the model to choose blocks, and none is at hand; give one with "
            "--model"
        )
    pins = (*split.anchor, *split.recent)
    divergence = Divergence.of(probe, len(pins) + len(split.mid), direction)
    chosen: list[int] = []
    while len(chosen) < split.mid_budget:
        left = [block for block in split.mid if block not in chosen]
        values = divergence.with_each((*pins, *chosen), left)
        near = min(values) + TIE
        chosen.append(next(b for b, value in zip(left, values, strict=True) if value <= near))
    return tuple(chosen)


@frozen(eq=False)
class Divergence:
    """How far next-token distributions over some blocks are from those over all blocks."""

    probe: Probe
    num_blocks: int
    direction: Direction
    full: Tensor  # float64 [text, vocab], log-probabilities after each text, all blocks visible

    @classmethod
    def of(cls, probe: Probe, num_blocks: int, direction: Direction) -> Divergence:
        """Run every probe text over the whole document, once."""
        every = torch.ones(1, num_blocks, dtype=torch.bool)
        full = torch.cat([_last(probe, text.token_ids, every) for text in probe.texts])
        return cls(probe, num_blocks, direction, full)

    def with_each(self, kept: Sequence[int], added: Sequence[int]) -> list[float]:
        """Mean KL over the texts where kept blocks and one of `added` are visible, for each."""

        def run(blocks: Sequence[int]) -> Tensor:
            """One row [] per block."""
            visible = torch.zeros(len(blocks), self.num_blocks, dtype=torch.bool)
            visible[:, list(kept)] = True
            visible[range(len(blocks)), list(blocks)] = True
            return self._from_full(visible)

        asked = repr(([text.token_ids for text in self.probe.texts], sorted(kept)))
        digest = hashlib.sha256(asked.encode()).hexdigest()
        values: list[float] = self.probe.each(
            f"{NAME}/{self.direction}/{digest}", added, run
        ).tolist()
        return values

    def _from_full(self, visible: Tensor) -> Tensor:
        """Mean over the texts, float64 [row]."""
        total = torch.zeros(len(visible), dtype=torch.float64)
        for text, whole in zip(self.probe.texts, self.full, strict=True):
            part = _last(self.probe, text.token_ids, visible)  # [row, vocab]
            p, q = (whole, part) if self.direction == "forward" else (part, whole)
            total += (p.exp() * (p - q)).sum(-1)
        if not bool(total.isfinite().all()):
            raise EngineError(
                "kri-d-greedy: the model's logits are not finite; run it with --dtype float32"
            )
        return total / len(self.full)


def _last(probe: Probe, token_ids: Sequence[int], visible: Tensor) -> Tensor:
    """Log-probabilities of the token after a text, float64 [row, vocab]."""
    logits = probe.forward(token_ids, read=("logits",), visible=visible, last=1).logits
    assert logits is not None  # noqa: S101 - it was asked for
    # float64: KL is a small sum of large terms that cancel.
    return logits[:, -1].double().log_softmax(-1)
