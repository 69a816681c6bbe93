"""How a scorer here reads a question: where its query vectors come from (ALGORITHMS 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kri_core import ArtifactError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Probe, Query, Split, Summary


@frozen
class Asking:
    """The parameters that every scorer here has: see README."""

    source: Literal["layer0", "pinned", "full"] = "pinned"
    pool_tokens: Literal["last", "mean", "max"] = "last"


def question_queries(
    query: Query, split: Split, probe: Probe | None, num_blocks: int, params: Asking
) -> Tensor:
    """Post-RoPE queries of the question, float32 [layer, q_head, token, head_dim].

    Only layer 0's where no block is shown, for the other layers' would miss the document; only the
    last token's where no other counts.
    """
    import torch

    if probe is None:
        raise ConfigError(
            "this scorer runs the question through the model, and none is at hand; give one with "
            "--model"
        )
    if not query.token_ids:
        raise ConfigError("the question has no tokens; ask something")
    visible = torch.zeros(1, num_blocks, dtype=torch.bool)
    if params.source == "pinned":
        visible[0, [*split.anchor, *split.recent]] = True
    elif params.source == "full":
        visible[:] = True
    last = 1 if params.pool_tokens == "last" else None
    read = probe.forward(query.token_ids, read=("queries",), visible=visible, last=last)
    assert read.queries is not None  # noqa: S101 - it was asked for
    return read.queries[0, :1] if params.source == "layer0" else read.queries[0]


def held(summary: Summary, name: str) -> Tensor:
    """A part of a prior's summary; a prior without meta may be another scorer's."""
    if name not in summary:
        raise ArtifactError(
            f"the prior's summary holds {', '.join(summary)} but no {name}: another scorer made "
            "it; bake one with this scorer"
        )
    return summary[name]
