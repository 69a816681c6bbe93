"""The items that most tasks need: how each is read and scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks import scoring
from kri_core.evaluation.tasks.contract import Item, Scores
from kri_core.evaluation.tasks.log_probs import PROMPT_ROWS, LogProbs, Reading, as_ids
from kri_core.evaluation.tasks.scoring import Metric

ANSWER_ROWS = 5  # positions of the answer whose distributions are compared, EVAL 1


def _tuples(options: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, options))


def _kl(routed: LogProbs, dense: LogProbs | None) -> Scores:
    """Over the last positions of the prompt and the first of the answer, if both are known."""
    if dense is None or dense.rows is None or routed.rows is None:
        return {}
    rows = slice(0, PROMPT_ROWS + ANSWER_ROWS)
    return {"kl": scoring.mean_kl(dense.rows[rows], routed.rows[rows])}


@frozen
class _Optioned(Item):
    """An item with options, of which `options[correct]` is right."""

    options: tuple[tuple[int, ...], ...] = field(converter=_tuples)  # token ids that may follow
    correct: int

    def __attrs_post_init__(self) -> None:
        """Refuse what has no one right answer."""
        if not 0 <= self.correct < len(self.options):
            raise ConfigError(
                f"item {self.id!r} has {len(self.options)} options and {self.correct} as the right "
                "one; give its index from 0"
            )
        if len(set(self.options)) < len(self.options):
            raise ConfigError(f"item {self.id!r} has two identical options; make them differ")
        if not all(self.options) or len(self.options) < 2:
            raise ConfigError(f"item {self.id!r} needs two options or more, none of them empty")

    @property
    def chance(self) -> Scores:
        """One of N."""
        return {"mc": 1 / len(self.options)}


@frozen
class Recall(_Optioned):
    """Copy an answer: options that differ from their first token on, decided by one forward.

    What all options start with (a space, for tokenizers that split digits) belongs to the prompt.
    With the same blocks the document is also continued: the first token of `continuation` is given,
    as no block can predict it, and the others are scored.
    """

    continuation: tuple[int, ...] = field(default=(), converter=as_ids, kw_only=True)
    metrics: ClassVar[tuple[Metric, ...]] = (
        scoring.MC,
        scoring.EM,
        scoring.LOGP,
        scoring.KL,
        scoring.COVER,
        scoring.NLL,
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options that one position cannot tell apart."""
        super().__attrs_post_init__()
        lead = self._lead
        firsts = {option[lead : lead + 1] for option in self.options}
        if () in firsts or len(firsts) < len(self.options):
            raise ConfigError(
                f"item {self.id!r} has options that one token cannot tell apart with this "
                "tokenizer; make each start differently"
            )

    @property
    def _lead(self) -> int:
        """How many tokens all options share at their start."""
        columns = zip(*self.options, strict=False)
        shared = (len(set(column)) == 1 for column in columns)
        return next((at for at, same in enumerate(shared) if not same), 0)

    def readings(self) -> tuple[Reading, ...]:
        """The right answer, fed token by token, and the continuation."""
        lead = self._lead
        among = tuple(option[lead] for option in self.options)
        right = self.question + self.options[self.correct]
        own = Reading(right, len(self.question) + lead, among)
        return (own, Reading(self.continuation, 1)) if self.continuation else (own,)

    def score(self, routed: Sequence[LogProbs], dense: Sequence[LogProbs] | None = None) -> Scores:
        """Those of the answer: mc, em, logp; kl against dense; nll of the continuation."""
        own, *following = routed
        right = self.options[self.correct][self._lead :]
        nll = {"nll": scoring.mean_nll(following[0].scored)} if following else {}
        return {
            "mc": scoring.is_best(own.among, self.correct),
            "em": float(own.best == right),
            "logp": scoring.log_share(own.among, self.correct),
            **_kl(own, dense[0] if dense else None),
            **nll,
        }


@frozen
class Choice(_Optioned):
    """Options of any length, each scored by the log-probability of all its tokens."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        scoring.MC,
        scoring.LOGP,
        scoring.KL,
        scoring.COVER,
    )

    def readings(self) -> tuple[Reading, ...]:
        """One for each option."""
        answer = len(self.question)
        return tuple(Reading(self.question + option, answer) for option in self.options)

    def score(self, routed: Sequence[LogProbs], dense: Sequence[LogProbs] | None = None) -> Scores:
        """Totals decide mc and logp; kl is of the right option's reading."""
        totals = [sum(own.scored) for own in routed]
        return {
            "mc": scoring.is_best(totals, self.correct),
            "logp": scoring.log_share(totals, self.correct),
            **_kl(routed[self.correct], dense[self.correct] if dense else None),
        }


@frozen
class Answer(Item):
    """One known answer and no other options."""

    answer: tuple[int, ...] = field(converter=as_ids)
    metrics: ClassVar[tuple[Metric, ...]] = (scoring.EM, scoring.NLL, scoring.KL)

    def readings(self) -> tuple[Reading, ...]:
        """The answer, fed token by token."""
        return (Reading(self.question + self.answer, len(self.question)),)

    def score(self, routed: Sequence[LogProbs], dense: Sequence[LogProbs] | None = None) -> Scores:
        """Those of one forward: em, nll; kl against dense."""
        (own,) = routed
        return {
            "em": float(own.best == self.answer),
            "nll": scoring.mean_nll(own.scored),
            **_kl(own, dense[0] if dense else None),
        }


@frozen
class Agreement(Item):
    """How close the routed reader stays to the dense one, on a text and on its own draft."""

    answer: tuple[int, ...] = field(converter=as_ids)
    draft: int
    metrics: ClassVar[tuple[Metric, ...]] = (
        scoring.TOP1,
        scoring.KL,
        scoring.ACCEPTANCE,
    )

    def readings(self) -> tuple[Reading, ...]:
        """The text that follows, and a draft in its place."""
        first = len(self.question)
        return (
            Reading(self.question + self.answer, first),
            Reading(self.question, first, draft=self.draft),
        )

    def score(self, routed: Sequence[LogProbs], dense: Sequence[LogProbs] | None = None) -> Scores:
        """On the text kl and top1, on the draft acceptance; nothing without dense."""
        if dense is None:
            return {}
        pairs = [(full.rows, own.rows) for full, own in zip(dense, routed, strict=True)]
        (full, own), (full_draft, own_draft) = pairs
        if full is None or own is None or full_draft is None or own_draft is None:
            return {}
        return {
            "kl": scoring.mean_kl(full, own),
            "top1": scoring.top1_agreement(full, own),
            "acceptance": scoring.acceptance_length(full_draft, own_draft),
        }
