"""What a new record or prior has in common with what was killed, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve, frozen

from kri_core.config import PluginRef, RoutingConfig
from kri_core.errors import KriError
from kri_core.evaluation.kill_log import kill_record, other_record, read_kills
from kri_core.evaluation.kills import Kill
from kri_core.evaluation.reading import read_record
from kri_core.evaluation.records import Record
from kri_core.evaluation.similarity import ALIKE, chosen, mean_jaccard, record_jaccard
from kri_core.grammar import parse
from kri_core.prior import Prior
from kri_core.probe import Probe
from kri_core.routing import Router
from kri_core.stack import Member
from kri_core.types import Cartridge


@frozen(eq=False)
class Killed:
    """A kill with its record, and what it is a verdict on."""

    kill: Kill
    record: Record
    repairs: tuple[PluginRef, ...] | None  # on these alone; None: on which blocks are chosen

    @classmethod
    def of(cls, kill: Kill, record: Record, other: Record | None) -> Killed:
        """Measured against a stack that differs in repairs alone, it says nothing of the choice."""
        repairs = parse(record.header.stack).repairs
        only_repairs = (
            other is not None
            and record.header.probe_set == other.header.probe_set
            and _without_repairs(record) == _without_repairs(other)
        )
        return cls(kill, record, repairs if only_repairs else None)


def killed_in(folder: Path) -> tuple[Killed, ...]:
    """The kills of a folder with their records."""
    return tuple(
        Killed.of(kill, kill_record(folder, kill), other_record(folder, kill))
        for kill in read_kills(folder)
    )


def records_alike(paths: Sequence[Path], killed: Sequence[Killed]) -> Iterator[str]:
    """A line for each stack of a run that chooses as a killed one did."""
    for record in map(read_record, paths if killed else ()):
        for old in killed if record.header.role == "stack" else ():
            if old.repairs in (None, parse(record.header.stack).repairs):
                shared = record_jaccard(record, old.record)
                yield from _said(record.header.label, old.kill, shared)


def prior_alike(
    scorer: Member,
    cartridge: Cartridge,
    prior: Prior,
    probe: Probe | None,
    killed: Sequence[Killed],
) -> Iterator[str]:
    """A line for each kill that knows the cartridge and chose of it what this prior chooses.

    The prior is asked in the killed stack: its split and selector, the new scorer.
    """
    for old in killed:
        kill, record = old.kill, old.record
        if cartridge.sha256 not in kill.cartridges or prior.only_summary:
            continue  # another document; or the choice depends on a question that is not there yet
        config = parse(record.header.stack)
        if config.scorer is None or old.repairs is not None:
            continue  # the verdict is on another part of the stack
        try:
            router = Router.from_config(evolve(config, scorer=scorer.ref, repairs=()))
            kept = router.route(cartridge, None, prior, probe).kept
        except KriError as error:
            yield f"{scorer.ref} was not compared with kill {kill.id}: {error}"
            continue
        yield from _said(str(scorer.ref), kill, _shared(kept, cartridge, kill, record))


def _without_repairs(record: Record) -> RoutingConfig:
    return evolve(parse(record.header.stack), repairs=())


def _shared(kept: Sequence[int], cartridge: Cartridge, kill: Kill, record: Record) -> float | None:
    header, place = record.header, kill.cartridges.index(cartridge.sha256)
    pins = (cartridge.layout.num_blocks, header.anchor, header.recent)
    mine, _ = chosen(kept, *pins)
    results = [result for result in record.results if kill.documents[result.id] == place]
    return mean_jaccard((mine, *chosen(result.kept, *pins)) for result in results)


def _said(name: str, kill: Kill, shared: float | None) -> Iterator[str]:
    if shared is not None and shared >= ALIKE:
        yield (
            f"{name} selects what the killed {kill.stack} selected (Jaccard {shared:.2f} without "
            f"pins); kill {kill.id} says: {kill.why}"
        )
