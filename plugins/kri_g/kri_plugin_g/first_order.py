"""A block's weight in a text's loss to first order: one pass forward and one back per text.

`kri-g` is the loss's gradient by a displacement of all of a block's keys, so that their mean moves
and their differences stay. `kri-g-gate` is the change of the loss when a block is left out of one
attention layer: leaving it out moves a head's output by −a/(1−a)·(oᵦ − o), with a the block's mass,
oᵦ the mean of its values by attention and o the whole output, and the gradient there says what that
does to the loss. Source: knlp's KRI-G, of which no code is public; the gate is ALGORITHMS 3.2.
Cost per text: a pass back of it and its targets, about three forwards, one forward more for the
gate, and the continuation's forwards. Both scorers read one sweep, so the second one is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from kri_plugin_g.targets import CONTINUATION_TOKENS, Targets, digest, examples

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Gradients, Probe

Reduce = Literal["shift", "sum_of_norms"]
Sign = Literal["positive", "absolute"]
SWEEP = "first-order/1"  # raise the number when the parts of a sweep change their meaning
SHIFT, NORMS, CHANGE = range(3)
MOST_MASS = 1 - 1e-6  # of one block; more would divide by what float32 rounds 1 − a to
STEP_VALUES = 4 << 20  # numbers in the largest tensor of a step, [q_head, token, token of blocks]
READ = ("queries", "block_mass", "head_outputs", "scaling")


def score_gradient(cartridge: Cartridge, probe: Probe, reduce: Reduce, targets: Targets) -> Tensor:
    """Float32 [layer, kv_head, block], averaged over the probe texts."""
    part = SHIFT if reduce == "shift" else NORMS
    return average([parts[part] for parts in sweep(cartridge, probe, targets)])


def score_gate(cartridge: Cartridge, probe: Probe, sign: Sign, targets: Targets) -> Tensor:
    """Float32 [layer, kv_head, block], averaged over the probe texts."""
    changes = [parts[CHANGE] for parts in sweep(cartridge, probe, targets)]
    return average([signed(change, sign) for change in changes])


def signed(change: Tensor, sign: Sign) -> Tensor:
    """A block whose absence lowers the loss is worth nothing, or as much as one that raises it."""
    return change.abs() if sign == "absolute" else change.clamp(min=0)


def sweep(cartridge: Cartridge, probe: Probe, targets: Targets) -> Tensor:
    """[text, part, layer, kv_head, block], kept by the probe; the parts are those of `measure`."""
    asked = examples(probe, targets)

    def run(units: Sequence[int]) -> Tensor:
        return torch.stack([measure(cartridge, probe, *asked[unit]) for unit in units])

    loss_of = f"continuation/{CONTINUATION_TOKENS}" if targets == "continuation" else targets
    return probe.each(f"{SWEEP}/{loss_of}/{digest(probe.texts)}", range(len(asked)), run)


def measure(
    cartridge: Cartridge, probe: Probe, token_ids: Sequence[int], targets: Sequence[int]
) -> Tensor:
    """Norm of the gradient's sum, sum of its norms, change of the loss: [3, layer, kv_head, block].

    GQA: autograd sums the query heads of a group in a key's gradient, and so does the change.
    """
    gradients = probe.gradients(token_ids, targets)
    shift = gradients.key_sums.norm(dim=-1)
    return torch.stack(
        [shift, gradients.key_norms, loss_changes(cartridge, probe, token_ids, gradients)]
    )


def loss_changes(
    cartridge: Cartridge, probe: Probe, token_ids: Sequence[int], gradients: Gradients
) -> Tensor:
    """How the loss changes when one KV head of one layer does not see a block, to first order."""
    read = probe.forward(token_ids, read=READ)
    assert read.queries is not None  # noqa: S101 - it was asked for
    assert read.block_mass is not None  # noqa: S101
    assert read.head_outputs is not None  # noqa: S101
    assert read.scaling is not None  # noqa: S101
    per_layer = []
    for layer, slopes in enumerate(gradients.head_outputs):
        queries = read.queries[0, layer] * float(read.scaling[0, layer])
        outputs, masses = read.head_outputs[0, layer], read.block_mass[0, layer]
        some = []
        for blocks in _steps(cartridge, queries):
            kv = cartridge.kv[list(blocks), layer].to(queries.dtype).permute(1, 2, 0, 3, 4)
            mass = masses[..., list(blocks)]
            some.append(changes_of_layer(queries, kv[0], kv[1], mass, outputs, slopes))
        per_layer.append(torch.cat(some, -1))
    return torch.stack(per_layer)


def changes_of_layer(
    queries: Tensor, keys: Tensor, values: Tensor, masses: Tensor, outputs: Tensor, slopes: Tensor
) -> Tensor:
    """−Σ a/(1−a)·⟨g, oᵦ − o⟩ over a KV head's query heads and all tokens, [kv_head, block].

    queries: [q_head, token, head_dim], times the logits' scaling; keys, values: [kv_head, block,
    block token, head_dim]; masses: a, [q_head, token, block]; outputs, slopes: o and the loss's
    gradient by it, [q_head, token, head_dim].
    """
    heads = len(keys)
    asked, along = queries.unflatten(0, (heads, -1)), slopes.unflatten(0, (heads, -1))
    within = torch.einsum("kgtd,kbsd->kgtbs", asked, keys).softmax(-1)
    part = (within * torch.einsum("kgtd,kbsd->kgtbs", along, values)).sum(-1)  # ⟨g, oᵦ⟩
    whole = (slopes * outputs).sum(-1).unflatten(0, (heads, -1))[..., None]  # ⟨g, o⟩
    mass = masses.clamp(max=MOST_MASS).unflatten(0, (heads, -1))  # [kv_head, group, token, block]
    return -(mass / (1 - mass) * (part - whole)).sum((1, 2))


def average(per_text: Sequence[Tensor]) -> Tensor:
    """Mean over probe texts after each is divided by its own mean, over layers and blocks together.

    A text that no block changes says nothing and counts as zeros.
    """
    total = torch.zeros_like(per_text[0], dtype=torch.float32)
    for scores in per_text:
        mean = scores.float().mean()
        if mean > 0:
            total += scores / mean
    return total / len(per_text)


def _steps(cartridge: Cartridge, queries: Tensor) -> Iterator[Sequence[int]]:
    """Consecutive blocks, as many as bound the largest tensor of a step."""
    layout = cartridge.layout
    per_block = queries.shape[0] * queries.shape[1] * layout.block_size
    step = max(1, STEP_VALUES // per_block)
    for first in range(0, layout.num_blocks, step):
        yield range(first, min(first + step, layout.num_blocks))
