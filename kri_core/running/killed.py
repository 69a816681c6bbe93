"""What a new record or prior has in common with what was killed, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve

from kri_core.errors import KriError
from kri_core.evaluation.kill_log import kill_record, read_kills
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

Killed = tuple[tuple[Kill, Record], ...]


def killed_in(folder: Path) -> Killed:
    """The kills of a folder with their records."""
    return tuple((kill, kill_record(folder, kill)) for kill in read_kills(folder))


def records_alike(paths: Sequence[Path], killed: Killed) -> Iterator[str]:
    """A line for each stack of a run that chooses as a killed one did."""
    for record in map(read_record, paths if killed else ()):
        for kill, old in killed:
            if record.header.role == "stack":
                shared = record_jaccard(record, old)
                yield from _said(record.header.label, kill, shared)


def prior_alike(
    scorer: Member, cartridge: Cartridge, prior: Prior, probe: Probe | None, killed: Killed
) -> Iterator[str]:
    """A line for each kill that knows the cartridge and chose of it what this prior chooses.

    The prior is asked in the killed stack: its split and selector, the new scorer.
    """
    for kill, record in killed:
        if cartridge.sha256 not in kill.cartridges or prior.only_summary:
            continue  # another document; or the choice depends on a question that is not there yet
        config = parse(record.header.stack)
        if config.scorer is None:
            continue
        try:
            router = Router.from_config(evolve(config, scorer=scorer.ref, repairs=()))
            kept = router.route(cartridge, None, prior, probe).kept
        except KriError as error:
            yield f"{scorer.ref} was not compared with kill {kill.id}: {error}"
            continue
        yield from _said(str(scorer.ref), kill, _shared(kept, cartridge, kill, record))


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
