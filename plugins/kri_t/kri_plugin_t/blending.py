"""kri-t with a query that is part the model's usual one and part the question's own.

Source: ALGORITHMS 5.7; kri-t's is TriAttention, arXiv 2604.04921. The question's queries before
RoPE are averaged over its tokens, as the calibration averages over a text's, and both means, of the
queries and of their lengths, are those of the mixture. Cost per request: the question's forward,
and one product of all kept keys with one vector per query head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kri_core import ArtifactError, ConfigError
from kri_plugin_t.trigonometry import calibration_of, score_layer

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Cartridge, Probe, Query, Split, Summary
    from kri_plugin_t.blend_params import BlendParams

PARTS = ("keys", "centre", "length", "num_tokens")


def summarise(cartridge: Cartridge, probe: Probe, first_layer: int) -> Summary:
    """Keys [layer, kv_head, block, token, head_dim] as they are stored, and the calibration.

    A block summary would not do: the largest of a group's z-scores is taken token by token.
    """
    calibration = calibration_of(cartridge, probe, "kri-t-q")
    centre = torch.view_as_real(calibration.centre[first_layer:])  # [layer, q_head, pair, 2]
    return {
        "keys": cartridge.kv[:, first_layer:, 0].permute(1, 2, 0, 3, 4).contiguous(),
        "centre": centre,
        "length": calibration.length[first_layer:],
        "num_tokens": torch.tensor(cartridge.layout.num_tokens),
    }


def score(
    summary: Summary, query: Query, split: Split, probe: Probe | None, params: BlendParams
) -> Tensor:
    """Float32 [layer, kv_head, block]; of layer 0, or as the mean over late layers, [1, …]."""
    keys, centre, length, num_tokens = _held(summary)
    if probe is None:
        raise ConfigError(
            "this scorer runs the question through the model, and none is at hand; give one with "
            "--model"
        )
    queries = question_queries(query, split, probe, keys.shape[2], params.source)
    asked = probe.rope.pairs(queries[-len(keys) :])  # [layer, q_head, token, pair]
    count = len(asked)  # 1 with source=layer0, though all are kept
    own, position = params.blend, int(num_tokens)
    centre = (1 - own) * torch.view_as_complex(centre.double())[:count] + own * asked.mean(2)
    length = (1 - own) * length.double()[:count] + own * asked.abs().mean(2)
    counted = _counted(split, *keys.shape[2:4])
    per_layer = [
        score_layer(keys[i], centre[i], length[i], probe.rope, position, counted, params)
        for i in range(count)
    ]
    scores = torch.stack(per_layer)
    late = count < len(queries)  # scores are of all layers or of one, and here some are not kept
    return scores.double().mean(0, keepdim=True).float() if late else scores


def _counted(split: Split, num_blocks: int, block_size: int) -> Tensor:
    """Tokens of mid: pins compete with nothing, and a sink alone would set the deviation."""
    blocks = torch.tensor(split.mid or range(num_blocks))
    return (blocks[:, None] * block_size + torch.arange(block_size)).flatten()


def question_queries(
    query: Query, split: Split, probe: Probe, num_blocks: int, source: str
) -> Tensor:
    """Pre-RoPE queries of the question, float32 [layer, q_head, token, head_dim].

    Only layer 0's where no block is shown, for the other layers' would miss the document.
    """
    if not query.token_ids:
        raise ConfigError("the question has no tokens; ask something")
    visible = torch.zeros(1, num_blocks, dtype=torch.bool)
    if source == "pinned":
        visible[0, [*split.anchor, *split.recent]] = True
    elif source == "full":
        visible[:] = True
    read = probe.forward(query.token_ids, read=("pre_rope_queries",), visible=visible)
    assert read.pre_rope_queries is not None  # noqa: S101 - it was asked for
    queries = read.pre_rope_queries[0]
    return queries[:1] if source == "layer0" else queries


def _held(summary: Summary) -> tuple[Tensor, ...]:
    """The summary's parts; a prior without meta may be another scorer's."""
    if missing := [name for name in PARTS if name not in summary]:
        raise ArtifactError(
            f"the prior's summary holds {', '.join(summary)} but no {', '.join(missing)}: another "
            "scorer made it; bake one with this scorer"
        )
    return tuple(summary[name] for name in PARTS)
