"""Leave one block out: run a probe text with and without each block and compare.

Source: knlp's KRI-D; the idea that a block matters by what it tells about the continuation is
L2M's (arXiv 2503.04725). Cost: one probe row per block and text, in batches over one shared cache,
plus a full row per batch. Both scorers read the same sweep, so the second one is free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe, ProbeText

Removal = Literal["mask", "reprefill"]
Readout = Literal["last", "all"]
SWEEP = "leave-one-out/2"  # raise the number when the columns of a sweep change their meaning
LAST_LAYERS = 5  # ALGORITHMS 1.2: as good as all of them or better, EVAL.md


@frozen(eq=False)
class Shifts:
    """What leaving each block out changed, for one probe text."""

    distance: Tensor  # [block, layer], mean over probe tokens of ‖h(all) − h(all∖{b})‖₂
    relative: Tensor  # [block, layer], the same with each term divided by ‖h(all)‖₂
    kl: Tensor  # [block], KL(p(all) ‖ p(all∖{b})) after the last probe token
    mean_kl: Tensor  # [block], the same, mean over probe tokens


def leave_one_out(cartridge: Cartridge, probe: Probe, text: ProbeText, removal: Removal) -> Shifts:
    """Sweep over all blocks; a finished batch is kept, and shared by every scorer that asks."""
    num_blocks = cartridge.layout.num_blocks

    def run(blocks: Sequence[int]) -> Tensor:
        """One row [2 × layer + 2] per block."""
        # The full row is in every batch: a matmul rounds by its number of rows. Against a row of
        # another batch size, a block without influence measured 1.5e-5 (‖h‖ = 10), within one 0.
        visible = torch.ones(1 + len(blocks), num_blocks, dtype=torch.bool)
        visible[range(1, 1 + len(blocks)), list(blocks)] = False
        read = probe.forward(
            text.token_ids, read=("hidden", "logits"), visible=visible, removal=removal
        )
        assert read.hidden is not None  # noqa: S101 - it was asked for
        assert read.logits is not None  # noqa: S101
        return _compare(read.hidden, read.logits)

    tokens = hashlib.sha256(repr(text.token_ids).encode()).hexdigest()[:16]
    rows = probe.each(f"{SWEEP}/{removal}/{tokens}", range(num_blocks), run)
    layers = cartridge.layout.num_layers
    return Shifts(rows[:, :layers], rows[:, layers : 2 * layers], rows[:, -2], rows[:, -1])


def _compare(hidden: Tensor, logits: Tensor) -> Tensor:
    """Rows 1… against row 0: hidden [row, layer, token, dim], logits [row, token, vocab]."""
    full, left_out = hidden[:1], hidden[1:]
    distance = (full - left_out).norm(dim=-1)  # [block, layer, token]
    relative = distance / full.norm(dim=-1)
    log_p = logits[0].log_softmax(-1)
    kl = torch.stack([_kl(log_p, row.log_softmax(-1)) for row in logits[1:]])  # [block, token]
    of_tokens = torch.stack([kl[:, -1], kl.mean(-1)], -1)
    return torch.cat([distance.mean(-1), relative.mean(-1), of_tokens], -1)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) of each token, [token], from [token, vocab].

    Σ p (q/p − 1 − log q/p) equals −Σ p log q/p, but has no first-order rounding to cancel.
    """
    log_ratio = log_q - log_p
    return (log_p.exp() * (log_ratio.expm1() - log_ratio)).sum(-1)


def score_kv_sum(
    cartridge: Cartridge,
    probe: Probe,
    norm: Literal["none", "relative"],
    layers: Literal["all", "last5"],
    removal: Removal,
) -> Tensor:
    """Float32 [layer, 1, block]; with last5 the earlier layers are 0 and do not rank."""
    per_text = []
    for shifts in _sweeps(cartridge, probe, removal):
        per_layer = (shifts.relative if norm == "relative" else shifts.distance).T
        if layers == "last5":
            per_layer = per_layer.clone()
            per_layer[:-LAST_LAYERS] = 0
        per_text.append(per_layer.unsqueeze(1))  # [layer, 1, block]
    return average(per_text)


def score_kl(cartridge: Cartridge, probe: Probe, removal: Removal, readout: Readout) -> Tensor:
    """Float32 [1, 1, block]."""
    sweeps = _sweeps(cartridge, probe, removal)
    per_text = [shifts.kl if readout == "last" else shifts.mean_kl for shifts in sweeps]
    return average([kl.view(1, 1, -1) for kl in per_text])


def average(per_text: Sequence[Tensor]) -> Tensor:
    """Mean over probe texts after each is divided by its own mean.

    The mean is over layers and blocks together: dividing layer by layer would undo norm="none".
    A text that no block changes says nothing and counts as zeros.
    """
    total = torch.zeros_like(per_text[0], dtype=torch.float32)
    for scores in per_text:
        mean = scores.float().mean()
        if mean > 0:
            total += scores / mean
    return total / len(per_text)


def _sweeps(cartridge: Cartridge, probe: Probe, removal: Removal) -> list[Shifts]:
    return [leave_one_out(cartridge, probe, text, removal) for text in probe.texts]
