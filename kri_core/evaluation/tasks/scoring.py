"""Scores from log-probabilities: pure functions, float64 inside."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, exp, inf, log
from typing import TYPE_CHECKING, Any

from attrs import frozen

from kri_core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@frozen
class Span:
    """Tokens start … stop − 1 of a document."""

    start: int
    stop: int

    def __attrs_post_init__(self) -> None:
        """Refuse a span of nothing."""
        if not 0 <= self.start < self.stop:
            raise ConfigError(
                f"a span is start < stop from 0; got {self.start} to {self.stop}; "
                "leave an empty one out"
            )


@frozen
class Metric:
    """A score: what it says, and whether more of it is better."""

    name: str
    meaning: str
    higher_is_better: bool = True


MC = Metric("mc", "the right option is the likeliest of all; a tie is wrong")
EM = Metric("em", "every token of the answer is the likeliest one, after the right ones before it")
LOGP = Metric("logp", "log-softmax, over the options, of the right one")
KL = Metric("kl", "KL(dense ‖ routed) per position, in nats", higher_is_better=False)
COVER = Metric("cover", "share of the blocks with the question's evidence that are kept")
NLL = Metric("nll", "negative log-probability per token, in nats", higher_is_better=False)
TOP1 = Metric("top1", "share of positions where dense and routed have one likeliest token")
ACCEPTANCE = Metric(
    "acceptance", "how many tokens the routed reader drafts greedily before dense disagrees"
)


def is_best(log_probs: Sequence[float], right: int) -> float:
    """1.0 if the right one is above all others: an undecided reader has not answered."""
    others = max((value for at, value in enumerate(log_probs) if at != right), default=-inf)
    return float(log_probs[right] > others)


def log_share(log_probs: Sequence[float], right: int) -> float:
    """Log-softmax of the right one among these."""
    top = max(log_probs)
    return log_probs[right] - top - log(sum(exp(value - top) for value in log_probs))


def mean_nll(log_probs: Sequence[float]) -> float:
    """Negative mean."""
    return -sum(log_probs) / len(log_probs)


def mean_kl(dense: NDArray[Any], routed: NDArray[Any]) -> float:
    """Mean over positions of KL(dense ‖ routed), [position, vocabulary] each."""
    import numpy as np

    p, q = dense.astype(np.float64), routed.astype(np.float64)
    possible = p > -inf  # what dense rules out adds nothing
    terms = np.exp(p[possible]) * (p[possible] - q[possible])
    return max(0.0, float(terms.sum() / len(p)))  # float32 rows may sum to a little over one


def top1_agreement(dense: NDArray[Any], routed: NDArray[Any]) -> float:
    """Share of positions with one likeliest token."""
    return float((dense.argmax(1) == routed.argmax(1)).mean())


def acceptance_length(dense: NDArray[Any], routed: NDArray[Any]) -> float:
    """Leading positions where both have one likeliest token; `routed` are rows of its own draft."""
    same = dense.argmax(1) == routed.argmax(1)
    return float(same.argmin()) if not same.all() else float(len(same))


def cover(evidence: Sequence[Span], kept: Sequence[int], block_size: int, num_blocks: int) -> float:
    """Share of the evidence's blocks that are kept; tokens in the tail are always attended."""
    wanted = evidence_blocks(evidence, block_size, num_blocks)
    return len(wanted & set(kept)) / len(wanted) if wanted else 1.0


def evidence_blocks(evidence: Sequence[Span], block_size: int, num_blocks: int) -> set[int]:
    """Every block that has a token of the evidence."""
    return {
        block
        for span in evidence
        for block in range(span.start // block_size, (span.stop - 1) // block_size + 1)
        if block < num_blocks
    }


def joint(values: Sequence[float], size: int) -> float:
    """Chance that `size` of these questions, drawn without replacement, are all right."""
    return comb(sum(value == 1 for value in values), size) / comb(len(values), size)
