"""What a probe text should be followed by: the tokens to run and the targets of the last of them.

The loss is of the model's own greedy continuation over the whole document (the teacher), or of the
text's own next tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from kri_core import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core import Probe, ProbeText

Targets = Literal["continuation", "text"]
CONTINUATION_TOKENS = 16  # a short answer; each costs a forward of the text and what follows it


def examples(probe: Probe, targets: Targets) -> list[tuple[Sequence[int], Sequence[int]]]:
    """For every probe text the token ids to run, and the targets of the last so many of them."""
    if targets == "text":
        return [own_next_tokens(text) for text in probe.texts]

    def run(units: Sequence[int]) -> Tensor:
        return torch.tensor([continuation(probe, probe.texts[unit]) for unit in units])

    name = f"greedy-continuation/1/{CONTINUATION_TOKENS}/{digest(probe.texts)}"
    said = probe.each(name, range(len(probe.texts)), run).tolist()
    pairs = zip(probe.texts, said, strict=True)
    return [((*text.token_ids, *tokens[:-1]), tokens) for text, tokens in pairs]


def own_next_tokens(text: ProbeText) -> tuple[Sequence[int], Sequence[int]]:
    """Each token but the last, to be followed by the next one."""
    if len(text.token_ids) < 2:
        raise ConfigError(
            f"probe text {text.text!r} has {len(text.token_ids)} token, so no next tokens to be "
            "the targets; give a longer one, or targets=continuation"
        )
    return text.token_ids[:-1], text.token_ids[1:]


def continuation(probe: Probe, text: ProbeText) -> list[int]:
    """The model's likeliest tokens after the document and the text, one after the other.

    Which token would end the text is not a thing a probe tells, so it goes on past it.
    """
    said: list[int] = []
    for _ in range(CONTINUATION_TOKENS):
        read = probe.forward((*text.token_ids, *said), read=("logits",), last=1)
        assert read.logits is not None  # noqa: S101 - it was asked for
        said.append(int(read.logits[0, -1].argmax()))
    return said


def digest(texts: Sequence[ProbeText]) -> str:
    """What tells these texts' tokens from others, for the name of kept work."""
    return hashlib.sha256(repr([text.token_ids for text in texts]).encode()).hexdigest()[:16]
