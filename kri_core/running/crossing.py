"""What crosses between the processes of a run: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from kri_core.cartridge import Layout
from kri_core.evaluation.tasks import Scores


@frozen
class Job:
    """What a process is started with."""

    task: str
    task_params: tuple[tuple[str, str], ...]
    docs: int | None  # None: all
    model: str
    revision: str | None
    dtype: str
    device: str
    cache: Path
    scorers: tuple[str, ...]
    server: str | None = None  # URL; None: this process reads


@frozen
class Failure:
    """What could not be done, on which document."""

    document: str
    what: str
    message: str


@frozen
class Prepared:
    """A document that is built and baked, as the header and the plan need it."""

    document: str
    group: str
    digest: str
    items: tuple[str, ...]  # their ids within the task
    ranked_by: str
    chances: Scores
    evidence: bool
    layout: Layout
    sha256: str
    prefix_hash: str
    probe_sets: tuple[str, ...]
    priors: Mapping[tuple[str, str | None], str]  # by scorer and probe set
    prior_files: tuple[str, ...]  # names without suffix
    failures: tuple[Failure, ...]


@frozen
class Reported:
    """What a process says of itself."""

    documents: int
    longest: Layout  # of the longest document
    fingerprint: str
    dtype: str
    machine: str
    substrate: str = "hf"
