"""How far a routed answer is from the dense one."""

from __future__ import annotations

from kri_core.substrate.hf.generate import Answer


def divergence(dense: Answer, routed: Answer) -> float:
    """KL(dense ‖ routed) of the next token in nats, mean over the question's tokens."""
    ours, theirs = dense.question_logprobs.double(), routed.question_logprobs.double()
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())
