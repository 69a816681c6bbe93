"""Reading a record: every line checked against the one before it, half a last line left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from kri_core.artifacts.fields import structure
from kri_core.artifacts.opening import naming, opened
from kri_core.errors import ArtifactError
from kri_core.evaluation.chain import link, start_link
from kri_core.evaluation.records import FORMAT_VERSION, Header, Record, Result

KILL_LOG = "kills.jsonl"  # lies beside the records and is none
Value = TypeVar("Value")


def whole_lines(data: bytes) -> tuple[list[bytes], int]:
    """The lines that end in a newline, and how many bytes they take; what follows was cut off."""
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), end


def read_record(path: Path) -> Record:
    """A record's whole lines; an ArtifactError names the file and the first line that is wrong."""
    with naming(path), opened(path) as file:
        lines, _ = whole_lines(file.read())
        return parse_record(path.name, lines)


def parse_record(name: str, lines: list[bytes]) -> Record:
    """A record from its whole lines."""
    if not lines:
        raise ArtifactError("has no whole line; delete it and run again")
    date, header = _first(lines[0])
    seal = start_link(lines[0].decode())
    results: dict[tuple[str, int], Result] = {}
    for number, (result, its_link) in enumerate(linked_values(Result, lines[1:], seal), start=2):
        seal = its_link
        if result.key in results or result.seed not in header.seeds:
            raise ArtifactError(
                f"line {number}: item {result.id!r} with seed {result.seed} is there twice or is "
                "not of this header; run it again under another --out"
            )
        results[result.key] = result
    _check_seeds_agree(results.values())
    return Record(name, date, header, tuple(results.values()), seal)


def record_paths(paths: Iterable[Path]) -> Iterator[Path]:
    """Every .jsonl of the folders but the kill log, and the files as they are; each once."""
    seen: set[Path] = set()
    for path in paths:
        for found in sorted(path.glob("*.jsonl")) if path.is_dir() else (path,):
            if found.name != KILL_LOG and found.resolve() not in seen:
                seen.add(found.resolve())
                yield found


def _first(line: bytes) -> tuple[str, Header]:
    held = _parsed(line, 1)
    version = held.get("kri_core_results")
    if version is None:
        raise ArtifactError("is no record of an evaluation; give a file that eval run has written")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"is of format {version}, this kri-core reads {FORMAT_VERSION}; upgrade kri-core"
        )
    header = structure(Header, held.get("header"), "header")
    if held.get("digest") != header.digest:
        raise ArtifactError(
            "line 1: the header is not the one its digest was made of: it was edited; restore the "
            "file or run it again"
        )
    return str(held.get("date")), header


def linked_values(cls: type[Value], lines: list[bytes], seal: str) -> Iterator[tuple[Value, str]]:
    """What the lines after the one with the link `seal` hold, each with its own link."""
    for number, line in enumerate(lines, start=2):
        held = dict(_parsed(line, number))
        said = held.pop("link", None)
        seal = link(seal, held)
        if said != seal:
            raise ArtifactError(
                f"line {number} is not what was recorded after line {number - 1}: it was edited, "
                "moved or lost; restore the file or run it again"
            )
        yield structure(cls, held, f"line {number}"), seal


def _parsed(line: bytes, number: int) -> Mapping[str, object]:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"line {number} is not JSON; restore the file") from error
    if not isinstance(held, dict):
        raise ArtifactError(f"line {number} is not a JSON object; restore the file")
    return held


def _check_seeds_agree(results: Iterable[Result]) -> None:
    """One item is of one document, whatever the seed."""
    group_of: dict[str, str] = {}
    for result in results:
        if group_of.setdefault(result.id, result.group) != result.group:
            raise ArtifactError(
                f"item {result.id!r} is of {group_of[result.id]!r} and of {result.group!r}; give "
                "each item of the task its own id"
            )
