"""What one stack did on one task: a header that says how, and its items (EVAL 4)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from attrs import asdict, field, fields, frozen

from kri_core.errors import ArtifactError
from kri_core.evaluation.statistics import Sample
from kri_core.identity import digest

FORMAT_VERSION = 1
NAME_DIGITS = 12
# stack: competes. full: every block. floor: no document. random: the null of stacks with the same
# pins and budget. reference: shown, not ranked (it peeks, or is no selector). placement: a stack's
# row over the blocks it kept of the next document.
ROLES = ("stack", "full", "floor", "random", "reference", "placement")


def floats(values: Mapping[str, float]) -> Mapping[str, float]:
    """A right answer is 1.0 in a record, however it was counted."""
    return {name: float(value) for name, value in values.items()}


@frozen
class Header:
    """Everything that decides what a record's items are; two runs agree in all of it or in none."""

    task: str = field()
    task_params: Mapping[str, str]
    items_digest: str  # of all documents, questions and right answers
    num_items: int
    ranked_by: str  # the score that orders a board; higher is better
    chance: Mapping[str, float] = field(converter=floats)  # by score, where guessing has a value
    role: str = field()
    stack: str  # canonical; of other rows their name, such as `full` or `oracle`
    anchor: int
    recent: int
    budget: int | None  # None: not limited
    seeds: tuple[int, ...] = field()
    plugins: tuple[str, ...]  # distribution and version of each plugin
    probe_set: str | None
    cartridges: str | None  # digest of their sha256, in the order of documents
    priors: str | None
    model: str  # for people
    fingerprint: str
    dtype: str
    substrate: str
    code: str  # kri-core's version, with the commit where there is one
    machine: str
    format_version: int = FORMAT_VERSION

    @task.validator
    def _check_task(self, _attribute: object, task: str) -> None:
        if not re.fullmatch("[a-z0-9][a-z0-9-]*", task):
            raise ArtifactError(
                f"header.task must be small letters, digits and '-', as it names the file; "
                f"got {task!r}"
            )

    @role.validator
    def _check_role(self, _attribute: object, role: str) -> None:
        if role not in ROLES:
            raise ArtifactError(f"header.role must be one of {', '.join(ROLES)}; got {role!r}")

    @seeds.validator
    def _check_seeds(self, _attribute: object, seeds: tuple[int, ...]) -> None:
        if not seeds or len(set(seeds)) < len(seeds):
            raise ArtifactError(f"header.seeds must be one or more, each once; got {list(seeds)}")

    @property
    def digest(self) -> str:
        """The record's identity, and the end of its file's name."""
        return digest(asdict(self))

    @property
    def label(self) -> str:
        """What a table calls the row."""
        return self.stack + (f", {self.probe_set} probes" if self.probe_set else "")

    @property
    def pins(self) -> tuple[int, int, int | None]:
        """What a row and its random null must share."""
        return self.anchor, self.recent, self.budget

    def difference(self, other: Header) -> str | None:
        """The first field in which two headers differ."""
        names = (one.name for one in fields(Header))
        return next((n for n in names if getattr(self, n) != getattr(other, n)), None)


@frozen
class Result:
    """How one item of the task came out under one seed."""

    id: str  # of the item, within the whole task
    group: str  # the document: the unit of resampling
    seed: int
    scores: Mapping[str, float] = field(converter=floats)
    kept: tuple[int, ...] = field()  # the blocks attended to, ascending
    total_blocks: int
    kept_fraction: float = field(converter=float)  # as the substrate reports it
    refreshed_tokens: int
    seconds: float = field(converter=float)

    @scores.validator
    def _check_scores(self, _attribute: object, scores: Mapping[str, float]) -> None:
        bad = [name for name, value in scores.items() if not math.isfinite(value)]
        if bad or not scores:
            raise ArtifactError(
                f"item {self.id!r}: scores must be finite and at least one; {bad or 'none'} is not"
            )

    @kept_fraction.validator
    def _check_kept(self, _attribute: object, kept_fraction: float) -> None:
        inside = all(0 <= block < self.total_blocks for block in self.kept)
        if not inside or list(self.kept) != sorted(set(self.kept)):
            raise ArtifactError(
                f"item {self.id!r}: kept must be ascending blocks below {self.total_blocks}; "
                f"got {list(self.kept)}"
            )
        blocks = len(self.kept) / self.total_blocks if self.total_blocks else 1.0
        if not math.isclose(blocks, kept_fraction, rel_tol=1e-9, abs_tol=1e-12):
            raise ArtifactError(
                f"item {self.id!r}: kept_fraction is {kept_fraction}, but {len(self.kept)} of "
                f"{self.total_blocks} blocks are recorded; run it again"
            )

    @property
    def key(self) -> tuple[str, int]:
        """No two items of a record share it."""
        return self.id, self.seed


@frozen
class Record:
    """A header and the items that are there so far."""

    name: str  # of the file
    date: str
    header: Header
    results: tuple[Result, ...]
    seal: str  # the last line's link

    @property
    def missing(self) -> int:
        """Items that a killed run has not come to."""
        return self.header.num_items * len(self.header.seeds) - len(self.results)

    def sample(self, score: str) -> Sample:
        """A score per item: the mean over the seeds, which are no new items."""
        found: dict[tuple[str, str], list[float]] = {}
        for result in self.results:
            if score not in result.scores:
                raise ArtifactError(
                    f"{self.name}: item {result.id!r} has no score {score!r}; it has "
                    f"{', '.join(sorted(result.scores))}"
                )
            found.setdefault((result.id, result.group), []).append(result.scores[score])
        means = ((*key, math.fsum(values) / len(values)) for key, values in found.items())
        return Sample.of(means)


def check_complete(record: Record) -> Record:
    """The record, if every item is there under every seed."""
    num_items, num_seeds = record.header.num_items, len(record.header.seeds)
    if record.missing or len({result.id for result in record.results}) != num_items:
        raise ArtifactError(
            f"{record.name} has {len(record.results)} items, its header says {num_items} under "
            f"{num_seeds} seeds; run the same command again to finish it"
        )
    return record


def file_name(header: Header, date: str) -> str:
    """<date>-<task>-<digest>.jsonl."""
    return f"{date}-{header.task}-{header.digest[:NAME_DIGITS]}.jsonl"
