"""What an item asks of the reader, and the log-probabilities it gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from kri_core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROMPT_ROWS = 3  # positions before the answer whose distributions are compared, EVAL 1
TOLERANCE = 1e-2  # of a row's total probability: bf16 readers round


def as_ids(token_ids: Iterable[int]) -> tuple[int, ...]:
    """Token ids, whatever sequence a tokenizer gives them in."""
    return tuple(token_ids)


@frozen
class Reading:
    """Tokens to feed after a document, and from where on their distributions are wanted.

    Position p is the distribution that follows `token_ids[p]`. Wanted are those of `start` to the
    last token, or, with `draft`, the ones of the tokens that are then drafted greedily: the routed
    reader drafts, and the dense one is fed the same tokens.
    """

    token_ids: tuple[int, ...] = field(converter=as_ids)
    answer: int  # index of the first token that is scored
    among: tuple[int, ...] = field(default=(), converter=as_ids)  # rivals for its place
    draft: int = 0  # how many tokens

    def __attrs_post_init__(self) -> None:
        """Refuse a reading whose first scored token nothing predicts, or that scores none."""
        last = len(self.token_ids) - (0 if self.draft else 1)
        if not 1 <= self.answer <= last:
            raise ConfigError(
                f"a reading of {len(self.token_ids)} tokens has an answer that starts at "
                f"{self.answer}; feed a token or more before it, and one or more of its own"
            )

    @property
    def start(self) -> int:
        """First position that is wanted."""
        return len(self.token_ids) - 1 if self.draft else max(0, self.answer - PROMPT_ROWS)

    @property
    def num_rows(self) -> int:
        """How many distributions are wanted."""
        return self.draft or len(self.token_ids) - self.start


@frozen(eq=False)
class LogProbs:
    """Natural log-probabilities that answer one reading.

    A reader that has whole distributions uses `from_rows`; one that does not (a server) fills the
    first three fields, and scores that compare distributions are left out.
    """

    scored: tuple[float, ...]  # of token_ids[answer:], each after those before it
    best: tuple[int, ...]  # the likeliest token in the place of each scored one
    among: tuple[float, ...]  # of the reading's `among`, in the place of the first scored one
    rows: NDArray[Any] | None = None  # float [position, vocabulary], see Reading

    @classmethod
    def from_rows(cls, reading: Reading, rows: NDArray[Any]) -> LogProbs:
        """Read everything off the distributions a reading wants."""
        _check_rows(reading, rows)
        if reading.draft:
            return cls((), (), (), rows)
        before = rows[reading.answer - 1 - reading.start :]
        tokens = reading.token_ids[reading.answer :]
        return cls(
            scored=tuple(float(row[token]) for row, token in zip(before, tokens, strict=False)),
            best=tuple(int(row.argmax()) for row, _ in zip(before, tokens, strict=False)),
            among=tuple(float(before[0][token]) for token in reading.among),
            rows=rows,
        )


def _check_rows(reading: Reading, rows: NDArray[Any]) -> None:
    """Refuse logits, NaN and rows of other positions: their scores would look like any other."""
    import numpy as np

    if rows.ndim != 2 or rows.shape[0] != reading.num_rows:
        raise EngineError(
            f"a reading wants {reading.num_rows} rows [position, vocabulary]; got shape "
            f"{rows.shape}; give those of positions start to the last"
        )
    with np.errstate(invalid="ignore"):  # NaN is what is looked for
        top = rows.max(axis=1, keepdims=True)
        totals = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1))
    wrong = np.flatnonzero(~(np.abs(totals) < TOLERANCE))
    if wrong.size:
        raise EngineError(
            f"row {wrong[0]} of a reading has a total log-probability of {totals[wrong[0]]:.3g}, "
            "not 0; give log-softmax of the logits, in float32"
        )
