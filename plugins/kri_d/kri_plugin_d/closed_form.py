"""Leave a block out of one attention layer, its inputs held fixed: known without running it again.

For one query, with a the block's attention mass, oᵦ its part's mean and o the whole output, leaving
the block out moves the output by o − o₋ᵦ = a/(1−a)·(oᵦ − o) (ALGORITHMS 1.3). Cost: one forward per
probe text and one pass of its queries over the cartridge, layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from kri_plugin_d.leave_one_out import average

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe, ProbeText

MOST_MASS = 1 - 1e-6  # of one block; more would divide by what float32 rounds 1 − a to
STEP_VALUES = 4 << 20  # numbers in the largest tensor of a step, [q_head, token, token of blocks]
READ = ("queries", "block_mass", "head_outputs", "scaling")


def score_direct(cartridge: Cartridge, probe: Probe) -> Tensor:
    """Float32 [layer, kv_head, block], averaged over the probe texts."""
    return average([score_text(cartridge, probe, text) for text in probe.texts])


def score_text(cartridge: Cartridge, probe: Probe, text: ProbeText) -> Tensor:
    """Mean over the text's tokens of ‖o − o₋ᵦ‖ through W_O, [layer, kv_head, block]."""
    read = probe.forward(text.token_ids, read=READ)
    assert read.queries is not None  # noqa: S101 - it was asked for
    assert read.block_mass is not None  # noqa: S101
    assert read.head_outputs is not None  # noqa: S101
    assert read.scaling is not None  # noqa: S101
    per_layer = []
    for layer in range(cartridge.layout.num_layers):
        asked = read.queries[0, layer] * float(read.scaling[0, layer])
        masses, outputs = read.block_mass[0, layer], read.head_outputs[0, layer]
        projection = probe.output_projection(layer)
        per_layer.append(_score_layer(cartridge, layer, asked, masses, outputs, projection))
    return torch.stack(per_layer)


def _score_layer(
    cartridge: Cartridge,
    layer: int,
    queries: Tensor,  # [q_head, token, head_dim], times the logits' scaling
    masses: Tensor,  # [q_head, token, block]
    outputs: Tensor,  # [q_head, token, head_dim]
    projection: Tensor,  # [q_head, head_dim, dim]
) -> Tensor:
    """[kv_head, block]."""
    heads, group = cartridge.layout.num_kv_heads, len(queries) // cartridge.layout.num_kv_heads
    # ‖xW‖ = ‖xRᵀ‖ where Wᵀ = QR, and R is group · head_dim wide instead of dim, several times that.
    factors = torch.linalg.qr(projection.reshape(heads, -1, projection.shape[-1]).mT, "r").R
    scores = []
    for blocks in _steps(cartridge, queries):
        some = masses[..., list(blocks)]
        keys, values = cartridge.kv[list(blocks), layer].to(queries.dtype).permute(1, 2, 0, 3, 4)
        moved = shifts(queries, keys, values, some, outputs)  # [q_head, token, block, head_dim]
        of_group = moved.unflatten(0, (heads, group)).permute(0, 2, 3, 1, 4).flatten(3)
        added = of_group @ factors.mT[:, None]  # [kv_head, token, block, group · head_dim]
        scores.append(added.norm(dim=-1).mean(1))  # [kv_head, block]
    return torch.cat(scores, -1)


def shifts(
    queries: Tensor, keys: Tensor, values: Tensor, masses: Tensor, outputs: Tensor
) -> Tensor:
    """Shifts o − o₋ᵦ of some blocks, [q_head, token, block, head_dim].

    queries: [q_head, token, head_dim], times the logits' scaling; keys, values: [kv_head, block,
    block token, head_dim]; masses: [q_head, token, block]; outputs: o, [q_head, token, head_dim].
    """
    grouped = queries.unflatten(0, (len(keys), -1))  # [kv_head, group, token, head_dim]
    logits = torch.einsum("kgtd,kbsd->kgtbs", grouped, keys)
    part = torch.einsum("kgtbs,kbsd->kgtbd", logits.softmax(-1), values).flatten(0, 1)
    mass = masses.clamp(max=MOST_MASS)[..., None]
    return mass / (1 - mass) * (part - outputs[:, :, None])


def _steps(cartridge: Cartridge, queries: Tensor) -> Iterator[Sequence[int]]:
    """Consecutive blocks, as many as bound the largest tensor of a step."""
    layout = cartridge.layout
    per_block = queries.shape[0] * queries.shape[1] * max(layout.block_size, layout.head_dim)
    step = max(1, STEP_VALUES // per_block)
    for first in range(0, layout.num_blocks, step):
        yield range(first, min(first + step, layout.num_blocks))
