"""Figures that others published, each beside our row of the same stack.

Theirs are of another task, so only order and signs can be held against ours. What is said of each
is computed from our p, adjusted as on the board, never written in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from kri_core.artifacts.fields import structure
from kri_core.artifacts.opening import naming, opened
from kri_core.errors import ArtifactError
from kri_core.evaluation.rows import Row
from kri_core.evaluation.statistics import Estimate

CLAIMS = ("better", "flat", "worse", "pending", "baseline")  # than, or as, random blocks


@frozen
class Claim:
    """One published row, and what it is called here."""

    name: str
    figure: str
    against_random: str
    claim: str = field()
    stack: str  # canonical
    probe_set: str | None

    @claim.validator
    def _check_claim(self, _attribute: object, claim: str) -> None:
        if claim not in CLAIMS:
            raise ArtifactError(f"claim must be one of {', '.join(CLAIMS)}; got {claim!r}")

    @property
    def label(self) -> str:
        """The row it is on a board."""
        return self.stack + (f", {self.probe_set} probes" if self.probe_set else "")


@frozen
class Published:
    """A published table, and the board it is held against."""

    source: str
    measured_on: str
    task: str
    budget: int
    claims: tuple[Claim, ...]


@frozen
class Judged:
    """A published row with ours beside it."""

    claim: Claim
    ours: Estimate | None  # None: not run
    difference: Estimate | None  # to its random blocks; None: it is such
    verdict: str


def read_published(path: Path) -> Published:
    """A published table from its JSON."""
    with naming(path), opened(path) as file:
        try:
            held = json.loads(file.read())
        except ValueError as error:
            raise ArtifactError("is not JSON; give a table of published rows") from error
        if not isinstance(held, Mapping) or not isinstance(held.get("claims"), list):
            raise ArtifactError("has no list of claims; give a table of published rows")
        claims = tuple(
            structure(Claim, claim, f"claims[{n}]") for n, claim in enumerate(held["claims"])
        )
        return evolve(structure(Published, {**held, "claims": []}, "it"), claims=claims)


def judged(claim: Claim, rows: Sequence[Row], score: str, not_ranked: str | None) -> Judged:
    """One published row beside ours, in words that follow from our adjusted p."""
    row = next((row for row in rows if row.label == claim.label), None)
    if row is None:
        return Judged(claim, None, None, "not run")
    ours = row.scores[score]
    if row.against_random is None:
        return Judged(claim, ours, None, "random blocks themselves")
    against = row.against_random
    if not_ranked is not None:
        return Judged(claim, ours, against.difference, f"not judged: {not_ranked}")
    words = {"better": "better than", "worse": "worse than", "flat": "not told apart from"}
    said = f"{words[against.verdict]} {against.null}: {_agreement(claim.claim, against.verdict)}"
    return Judged(claim, ours, against.difference, said)


def _agreement(claim: str, found: str) -> str:
    if claim == "pending":
        return "nothing was published to agree with"
    return "as published" if claim == found else f"published as {claim}"
