"""From a planned row to the blocks of a document's items: by the stack, or as a reference keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from attrs import Factory, evolve, field, frozen

from kri_core.errors import ArtifactError, ConfigError
from kri_core.evaluation.tasks import Document
from kri_core.grammar import parse
from kri_core.prior import Prior
from kri_core.registry import Registry
from kri_core.repairing import repair_params
from kri_core.routing import Router
from kri_core.running.answering import Selection
from kri_core.running.caching import Cache
from kri_core.running.planning import PlannedRow
from kri_core.running.references import keep
from kri_core.scoring import SCORE_QUERY
from kri_core.stack import Member
from kri_core.substrate.hf import HfModel, HfProbe, probe_texts, run_repairs
from kri_core.substrate.hf.captures import Captures
from kri_core.types import Cartridge, Manifest, Query

Routed = tuple[Manifest, float]  # and the seconds that it took
BATCH = 16  # 8–16 masks at once were fastest on a CPU (ALGORITHMS 1.2)


def probe_on(model: HfModel, cartridge: Cartridge, texts: Sequence[str]) -> HfProbe:
    """A probe with these texts, which may be none."""
    return HfProbe(model, cartridge, probe_texts(model, texts), BATCH)


@frozen(eq=False)
class Chooser:
    """Chooses the blocks of one document's items."""

    model: HfModel
    cartridge: Cartridge
    document: Document
    cache: Cache
    registry: Registry
    other: Chooser | None = None  # of the next document, for the rows that take its places
    _captures: Captures = field(init=False)
    _routers: dict[str, Router] = Factory(dict)
    _probes: dict[str | None, HfProbe] = Factory(dict)
    _priors: dict[tuple[str, str | None], Prior] = Factory(dict)
    _routed: dict[object, Routed] = Factory(dict)

    @_captures.default
    def _kept_captures(self) -> Captures:
        return self.cache.captures(self.model)

    def choose(self, row: PlannedRow, seed: int) -> list[Selection]:
        """What this row keeps for each of the document's items under a seed."""
        if row.kind == "placement" and self.other:
            return self._placed(row, self.other)
        if row.kind in {"stack", "placement"}:
            return self._by_stack(row)
        return keep(row, self.model, self.cartridge, self.document, seed)

    def _placed(self, row: PlannedRow, other: Chooser) -> list[Selection]:
        """The blocks that the stack kept there for the item of the same index; no repair."""
        mine, its = self.cartridge.layout.num_blocks, other.cartridge.layout.num_blocks
        if (mine, len(self.document.items)) != (its, len(other.document.items)):
            raise ConfigError(
                f"placement needs documents of as many blocks and items; {self.document.id} has "
                f"{mine} and {len(self.document.items)}, {other.document.id} {its} and "
                f"{len(other.document.items)}: leave --placement out, or give them one length"
            )
        return other._by_stack(row)

    def _by_stack(self, row: PlannedRow) -> list[Selection]:
        """A stack that does not read the question chooses once for all of a document's."""
        router, items = self.router(row.name), self.document.items
        aware = _scores_questions(router) or _repairs_after_question(router)
        asked = [item.question if aware else items[0].question for item in items]
        questions = list(dict.fromkeys(asked))
        found = dict(zip(questions, self._select(router, row, questions), strict=True))
        return [found[question] for question in asked]

    def _select(
        self, router: Router, row: PlannedRow, questions: Sequence[tuple[int, ...]]
    ) -> list[Selection]:
        routed = [self._route(router, row.probe_set, question) for question in questions]
        chosen = [Selection(manifest.kept, seconds=seconds) for manifest, seconds in routed]
        if row.kind == "placement" or not router.stack.repairs:
            return chosen
        manifests = [manifest for manifest, _ in routed]
        wanted = list(zip(manifests, questions, strict=True))
        done = run_repairs(self.model, self.cartridge, router, wanted)
        return [
            evolve(
                selection,
                repaired=prefix,
                variant=f"{row.name} {row.probe_set} {list(question)}",
                refreshed_tokens=sum(len(one.report.refreshed) for one in repairs),
                seconds=selection.seconds + sum(one.seconds for one in repairs),
            )
            for selection, question, (prefix, repairs) in zip(chosen, questions, done, strict=True)
        ]

    def _route(self, router: Router, probe_set: str | None, question: tuple[int, ...]) -> Routed:
        """What a stack keeps is not asked again for the same stack with repairs."""
        config = router.stack.config
        plain = str(evolve(config, repairs=()))
        key = plain, probe_set, question if _scores_questions(router) else ()
        if key not in self._routed:
            prior, probe = self._prior(router, probe_set), self._probe(probe_set)
            start = time.perf_counter()
            manifest = self.router(plain).route(self.cartridge, Query(question), prior, probe)
            self._routed[key] = manifest, time.perf_counter() - start
        manifest, seconds = self._routed[key]
        stack = evolve(parse(manifest.stack), repairs=config.repairs)
        return evolve(manifest, stack=str(stack)), seconds

    def router(self, name: str) -> Router:
        """Of a stack, loaded once."""
        if name not in self._routers:
            self._routers[name] = Router.from_config(parse(name), self.registry)
        return self._routers[name]

    def _probe(self, probe_set: str | None) -> HfProbe:
        if probe_set not in self._probes:
            texts = [
                text for one in self.document.probes if one.name == probe_set for text in one.texts
            ]
            probe = probe_on(self.model, self.cartridge, texts)
            self._probes[probe_set] = evolve(probe, captures=self._captures)
        return self._probes[probe_set]

    def prior_path(self, name: str, probe_set: str | None) -> Path | None:
        """The file of a stack's prior; None: it has no scorer."""
        scorer = self.router(name).stack.scorer
        if scorer is None:
            return None
        probe = self._probe(self._probe_set(probe_set))
        path = self.cache.prior_path(probe, scorer)
        if not path.exists():
            raise _no_prior(scorer)
        return path

    def _probe_set(self, name: str | None) -> str | None:
        """Without one a prior is that of any."""
        return self.document.probes[0].name if name is None and self.document.probes else name

    def _prior(self, router: Router, probe_set: str | None) -> Prior | None:
        scorer = router.stack.scorer
        if scorer is None:
            return None
        probe_set = self._probe_set(probe_set)
        key = (str(scorer.ref), probe_set)
        if key not in self._priors:
            held = self.cache.prior(self._probe(probe_set), scorer)
            if held is None:
                raise _no_prior(scorer)
            self._priors[key] = held
        return self._priors[key]


def _no_prior(scorer: Member) -> ArtifactError:
    return ArtifactError(f"{scorer.ref} has no prior of this document; see above")


def _scores_questions(router: Router) -> bool:
    scorer = router.stack.scorer
    return scorer is not None and scorer.answers(SCORE_QUERY)


def _repairs_after_question(router: Router) -> bool:
    repairs = [repair_params(member.params) for member in router.stack.repairs]
    return any(params.reference == "query_first" for params in repairs)
