"""What one process does: it holds the model, prepares documents and answers their items."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import attrs
import torch
from attrs import frozen
from transformers.utils.logging import disable_progress_bar

from kri_core.errors import ConfigError, KriError
from kri_core.evaluation.records import Result
from kri_core.evaluation.tasks import Document, Task, chance, load_task
from kri_core.evaluation.tasks.references import position_matched
from kri_core.grammar import parse_scorer
from kri_core.models import resolve_model
from kri_core.registry import Registry
from kri_core.running.answering import Reader
from kri_core.running.caching import BLOCK_SIZE, Cache, prior_digest
from kri_core.running.crossing import Failure, Job, Prepared, Reported
from kri_core.running.planning import PlannedRow
from kri_core.running.rows import HfRows
from kri_core.running.selecting import Chooser, probe_on
from kri_core.running.served import ServedRows
from kri_core.running.server import Server
from kri_core.running.tokenizing import HfTokenizer
from kri_core.stack import Member
from kri_core.substrate.hf import HfModel, load_model
from kri_core.types import Layout


@frozen(eq=False, slots=False)
class Worker:
    """One process's model and task."""

    job: Job
    registry: Registry
    model: HfModel

    @classmethod
    def start(cls, job: Job) -> Worker:
        """Load the model; one thread, so that numbers do not depend on the cores there are."""
        torch.set_num_threads(1)
        disable_progress_bar()  # several processes share stderr
        model = load_model(resolve_model(job.model), job.revision, job.dtype, job.device)
        return cls(job, Registry.discover(), model)

    @cached_property
    def task(self) -> Task:
        """The task with its parameters, of which --docs may be one."""
        task = load_task(self.job.task, dict(self.job.task_params), self.registry)
        if self.job.docs is None or not hasattr(task, "docs"):
            return task
        return cast("Task", attrs.evolve(cast("Any", task), docs=self.job.docs))

    @cached_property
    def documents(self) -> tuple[Document, ...]:
        """The first so many documents."""
        found = tuple(islice(self.task.documents(HfTokenizer(self.model)), self.job.docs))
        if not found or not all(document.items for document in found):
            raise ConfigError(f"task {self.job.task} has no document with items; give it some")
        return found

    @cached_property
    def cache(self) -> Cache:
        """Where cartridges and priors are kept."""
        return Cache(self.job.cache)

    @cached_property
    def scorers(self) -> tuple[Member, ...]:
        """The scorers that some stack names."""
        refs = [parse_scorer(text) for text in self.job.scorers]
        return tuple(Member.load(self.registry, "scorer", ref) for ref in refs)

    def report(self) -> Reported:
        """What a header says of the process."""
        on_gpu = self.model.device.type == "cuda"
        place = torch.cuda.get_device_name(self.model.device) if on_gpu else platform.machine()
        return Reported(
            len(self.documents),
            self._longest(),
            self.model.identity.fingerprint,
            str(self.model.dtype).removeprefix("torch."),
            f"{place}, one thread, torch {torch.__version__}",
        )

    def _longest(self) -> Layout:
        """Of the longest document, before it is built."""
        anatomy = self.model.anatomy
        sizes = (len(anatomy.layers), anatomy.num_kv_heads, anatomy.head_dim)
        return Layout(*sizes, BLOCK_SIZE, max(len(one.token_ids) for one in self.documents))

    def prepare(self, index: int) -> Prepared:
        """Build a document's cartridge and bake what the stacks need."""
        document = self.documents[index]
        cartridge = self.cache.cartridge(self.model, document.token_ids)
        priors: dict[tuple[str, str | None], str] = {}
        failures, files = [], []
        for texts in document.probes or (None,):
            probe = probe_on(self.model, cartridge, texts.texts if texts else ())
            for scorer, made in self.cache.priors(probe, self.scorers):
                key = (str(scorer.ref), texts.name if texts else None)
                if isinstance(made, KriError):
                    failures.append(Failure(document.id, f"baking {scorer.ref}", str(made)))
                else:
                    priors[key] = prior_digest(made)
                    files.append(self.cache.prior_path(probe, scorer).stem)
        return Prepared(
            document=document.id,
            group=document.group,
            digest=document.digest,
            items=item_ids(document),
            ranked_by=document.items[0].metrics[0].name,
            chances=chance(document.items),
            evidence=all(item.evidence for item in document.items),
            layout=cartridge.layout,
            sha256=cartridge.sha256,
            prefix_hash=cartridge.prefix_hash,
            probe_sets=tuple(texts.name for texts in document.probes),
            priors=priors,
            prior_files=tuple(files),
            failures=tuple(failures),
        )

    def answer(
        self, index: int, todo: Sequence[tuple[int, PlannedRow]]
    ) -> Iterator[tuple[int, tuple[Result, ...] | Failure]]:
        """One document's items under each of the rows, each with its own seeds."""
        document = self.documents[index]
        cartridge = self.cache.cartridge(self.model, document.token_ids)
        following = self._next(index, todo)
        chooser = Chooser(self.model, cartridge, document, self.cache, self.registry, following)
        rows: HfRows | ServedRows = HfRows(Reader(self.model, cartridge), document, chooser)
        if self.job.server is not None:
            rows = ServedRows(Server(self.job.server), cartridge, document, chooser)
        for place, row in todo:
            try:
                yield place, tuple(self._results(document, row, rows))
            except KriError as error:
                yield place, Failure(document.id, row.name, str(error))

    def _next(self, index: int, todo: Sequence[tuple[int, PlannedRow]]) -> Chooser | None:
        """The next document's chooser, where a row takes what was kept there."""
        if not any(row.kind == "placement" for _, row in todo):
            return None
        document = self.documents[position_matched(index, len(self.documents))]
        cartridge = self.cache.cartridge(self.model, document.token_ids)
        return Chooser(self.model, cartridge, document, self.cache, self.registry)

    def _results(
        self, document: Document, row: PlannedRow, rows: HfRows | ServedRows
    ) -> Iterator[Result]:
        ids = item_ids(document)
        for seed in row.seeds:
            answered = rows.answer(row, seed)
            together = self.task.per_document([outcome.scores for _, outcome in answered])
            for name, (selection, outcome) in zip(ids, answered, strict=True):
                yield Result(
                    id=name,
                    group=document.group,
                    seed=seed,
                    scores={**outcome.scores, **together},
                    kept=selection.kept,
                    total_blocks=rows.cartridge.layout.num_blocks,
                    kept_fraction=outcome.kept_fraction,
                    refreshed_tokens=selection.refreshed_tokens,
                    seconds=selection.seconds + outcome.seconds,
                )


def item_ids(document: Document) -> tuple[str, ...]:
    """Ids within the whole task: of the group and the item."""
    start = f"{document.group}/"
    return tuple(
        item.id if item.id.startswith(start) else start + item.id for item in document.items
    )


def text_params(task: Task) -> dict[str, str]:
    """A task's parameters as a header has them; of a file its name, as its content is digested."""
    values = attrs.asdict(task)  # type: ignore[arg-type]
    return {
        name: Path(str(value)).name if name == "path" else str(value)
        for name, value in values.items()
    }
