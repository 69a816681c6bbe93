"""A kill: the verdict that a stack does not do what was hoped, over the record that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import astuple, field, frozen

from kri_core.errors import ArtifactError, ConfigError
from kri_core.evaluation.against_random import MIN_SEEDS
from kri_core.evaluation.board_words import p_text
from kri_core.evaluation.records import NAME_DIGITS, Record, check_complete
from kri_core.evaluation.rows import null_pins
from kri_core.evaluation.statistics import LEVEL, Sample, estimate, p_value
from kri_core.identity import digest

DIGITS = 6  # after the point: the same on every machine
SHARED = ("items_digest", "ranked_by", "fingerprint", "dtype", "substrate")  # to be comparable


@frozen
class Against:
    """A stack less another row, over documents."""

    difference: float
    low: float
    high: float
    p: float  # of the paired t test, two-sided

    @classmethod
    def of(cls, difference: Sample) -> Against:
        """Rounded, so that it is the same on every machine."""
        found = estimate(difference)
        values = (found.mean, found.low, found.high, p_value(difference))
        return cls(*map(rounded, values))

    @property
    def better(self) -> bool:
        """The t test finds the stack above the other row at 95 %."""
        return self.difference > 0 and self.p < 1 - LEVEL

    def __str__(self) -> str:
        return f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p {p_text(self.p)}"


@frozen
class Kill:
    """One line of the kill log."""

    record: str  # its file's name, in the log's folder
    digest: str  # of its header
    seal: str
    date: str
    why: str = field()
    stack: str  # with its probe set
    task: str
    budget: int | None
    model: str
    score: str
    mean: float
    error: float  # standard error over documents
    null: str | None  # the random record it was measured against; None: there was none
    less_random: tuple[float, ...]  # as Against; empty without a null
    cartridges: tuple[str, ...]  # sha256 of each, in the order of documents; empty: not known
    documents: Mapping[str, int]  # which of the cartridges an item is about
    other: str | None = None  # a second record it was measured against; None: random alone
    other_stack: str | None = None  # with its probe set
    less_other: tuple[float, ...] = ()  # as Against

    @why.validator
    def _check_why(self, _attribute: object, why: str) -> None:
        if not why.strip() or not why.isprintable():
            raise ConfigError(f"--why must be one line of text; got {why!r}")

    @property
    def id(self) -> str:
        """Also the end of the record's name."""
        return self.digest[:NAME_DIGITS]

    @property
    def against_random(self) -> Against | None:
        """Its difference to random, where a null was there."""
        return Against(*self.less_random) if self.less_random else None

    @property
    def against_other(self) -> Against | None:
        """Its difference to the second record, where one was given."""
        return Against(*self.less_other) if self.less_other else None


@frozen
class Verdict:
    """What a person says, beside what the records say."""

    why: str
    date: str
    cartridges: tuple[str, ...] = ()
    documents: Mapping[str, int] = field(factory=dict)


def kill_of(record: Record, null: Record | None, other: Record | None, verdict: Verdict) -> Kill:
    """The kill of a finished stack's record; every number is computed here."""
    header = check_complete(record).header
    if header.role != "stack":
        raise ArtifactError(
            f"{record.name} is of {header.stack}, a row of role {header.role}; kill a stack's"
        )
    _check_documents(record, verdict)
    if other is not None:
        _check_other(record, other)
    found = estimate(record.sample(header.ranked_by))
    return Kill(
        record=record.name,
        digest=header.digest,
        seal=record.seal,
        date=verdict.date,
        why=verdict.why,
        stack=header.label,
        task=header.task,
        budget=header.budget,
        model=header.model,
        score=header.ranked_by,
        mean=rounded(found.mean),
        error=rounded(found.error),
        null=null.name if null else None,
        less_random=_less(record, null),
        cartridges=verdict.cartridges,
        documents=verdict.documents,
        other=other.name if other else None,
        other_stack=other.header.label if other else None,
        less_other=_less(record, other),
    )


def random_null(record: Record, others: Sequence[Record]) -> Record | None:
    """The finished random record that a stack is measured against, if one is among the others."""
    header = record.header
    for other in sorted(others, key=lambda one: (one.header.code != header.code, one.name)):
        is_null = other.header.role == "random" and other.header.pins == null_pins(header.pins)
        same = _unlike(record, other) is None
        if is_null and same and len(other.header.seeds) >= MIN_SEEDS and not other.missing:
            return other
    return None


def rounded(value: float) -> float:
    """Without a −0.0, which another machine may not have."""
    return round(value, DIGITS) + 0.0


def _less(record: Record, other: Record | None) -> tuple[float, ...]:
    if other is None:
        return ()
    score = record.header.ranked_by
    return astuple(Against.of(record.sample(score).minus(other.sample(score))))


def _unlike(record: Record, other: Record) -> str | None:
    """The first field in which two records cannot be measured against each other."""
    mine, theirs = record.header, other.header
    return next((name for name in SHARED if getattr(mine, name) != getattr(theirs, name)), None)


def _check_other(record: Record, other: Record) -> None:
    """Another finished stack, of which both a paired difference and a rerun make sense."""
    header, field_name = check_complete(other).header, _unlike(record, other)
    if header.role != "stack":
        fault = f"is a row of role {header.role}"
    elif header.label == record.header.label:
        fault = "is of the same stack and probe set"
    elif field_name is not None:
        fault = f"has another {field_name}"
    else:
        return
    raise ArtifactError(
        f"{other.name} {fault}, so {record.name} is not measured against it; give --against "
        "another stack's record of the same items, score, model, dtype and substrate"
    )


def _check_documents(record: Record, verdict: Verdict) -> None:
    """The cartridges are those that the record's header has the digest of."""
    if not verdict.cartridges:
        return
    items = {result.id for result in record.results}
    known = digest(list(verdict.cartridges)) == record.header.cartridges
    places = set(verdict.documents.values())
    if (
        not known
        or set(verdict.documents) != items
        or places != set(range(len(verdict.cartridges)))
    ):
        raise ArtifactError(f"the documents listed are not those of {record.name}; restore the log")
