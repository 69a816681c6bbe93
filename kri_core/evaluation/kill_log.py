"""The kill log: a file beside the records, to which kills are only ever added, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kri_core.artifacts.opening import naming, opened
from kri_core.errors import ArtifactError
from kri_core.evaluation.chain import linked_line, start_link
from kri_core.evaluation.kills import Kill, Verdict, kill_of, random_null
from kri_core.evaluation.reading import (
    KILL_LOG,
    linked_values,
    read_record,
    record_paths,
    whole_lines,
)
from kri_core.evaluation.recording import lock
from kri_core.evaluation.records import Record

FIRST_LINE = '{"kri_core_kills":1}'
TITLE = "# Kill log"  # also how `eval verify` knows the page
ABOUT = (
    "A kill is the verdict that a stack does not do what it was hoped to, over a record under "
    "`results/` whose numbers `kri-core eval verify` computes again. `kri-core eval kill-log rerun "
    "ID --model MODEL` runs the same stack, and the other one where it was measured against one, "
    "on the same task again, with `--set seed=1` on other documents, and says whether the verdict "
    "still stands."
)
_MEASURED = ("score", "− random", "− another stack")  # noqa: RUF001
COLUMNS = ("id", "date", "task", "blocks", "model", "stack", *_MEASURED, "why", "record")


def read_kills(folder: Path) -> tuple[Kill, ...]:
    """All kills of a folder, which may have none."""
    path = folder / KILL_LOG
    if not path.exists():
        return ()
    with naming(path), opened(path) as file:
        return _parsed(whole_lines(file.read())[0])[0]


def find_kill(folder: Path, kill_id: str) -> Kill:
    """The kill of this id."""
    kills = read_kills(folder)
    for kill in kills:
        if kill.id == kill_id:
            return kill
    known = ", ".join(kill.id for kill in kills) or "none"
    raise ArtifactError(f"{folder / KILL_LOG} has no kill {kill_id!r}; it has {known}")


def add_kill(path: Path, against: Path | None, verdict: Verdict) -> Kill:
    """Put a verdict on a record into the log beside it; `against` lies there too."""
    record, others = read_record(path), _others(path.parent)
    other = None if against is None else _beside(path.parent, against)
    kill = kill_of(record, random_null(record, others), other, verdict)
    log = path.parent / KILL_LOG
    with naming(log), log.open("a+b") as file:
        lock(file)
        file.seek(0)
        lines, end = whole_lines(file.read())
        kills, seal = _parsed(lines or [FIRST_LINE.encode()])
        if twice := next((one for one in kills if one.id == kill.id), None):
            raise ArtifactError(
                f"{record.name} was killed on {twice.date} ({twice.why}); a record is killed once"
            )
        file.truncate(end)  # half a line, which a killed process leaves
        first = "" if lines else f"{FIRST_LINE}\n"
        file.write(f"{first}{linked_line(kill, seal)[0]}\n".encode())
    return kill


def check_kills(folder: Path) -> tuple[Kill, ...]:
    """Every kill of a folder, its record there with its seal and its numbers computed again."""
    kills = read_kills(folder)
    with naming(folder / KILL_LOG):
        for kill in kills:
            _check(folder, kill)
    return kills


def kill_record(folder: Path, kill: Kill) -> Record:
    """The record that was killed, unchanged since."""
    record = read_record(folder / kill.record)
    if (record.header.digest, record.seal) != (kill.digest, kill.seal):
        raise ArtifactError(
            f"kill {kill.id} is of {kill.record} with seal {kill.seal}, which now has "
            f"{record.seal}; restore the record"
        )
    return record


def other_record(folder: Path, kill: Kill) -> Record | None:
    """The second record that it was measured against."""
    if kill.other is None:
        return None
    record = read_record(folder / kill.other)
    if record.header.label != kill.other_stack:
        raise ArtifactError(
            f"kill {kill.id} is against {kill.other_stack}, and {kill.other} now has "
            f"{record.header.label}; restore the record"
        )
    return record


def to_markdown(kills: Sequence[Kill]) -> str:
    """The log as a page: the same kills always give the same text."""
    rows = [COLUMNS, *map(cells, kills)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    table = "\n".join((lines[0], "|" + "---|" * len(COLUMNS), *lines[1:]))
    return f"{TITLE}\n\n{ABOUT}\n\n{table if kills else 'There is none.'}\n"


def cells(kill: Kill) -> tuple[str, ...]:
    """A row of the log, by COLUMNS."""
    return (
        kill.id,
        kill.date,
        kill.task,
        "all" if kill.budget is None else str(kill.budget),
        kill.model,
        kill.stack,
        *_measured(kill),
        kill.why,
        f"{kill.record}, seal {kill.seal}",
    )


def _measured(kill: Kill) -> tuple[str, ...]:
    return (
        f"{kill.score} {kill.mean:.3f} ± {kill.error:.3f}",
        str(kill.against_random or "no random null"),
        f"{kill.other_stack}: {kill.against_other}" if kill.other else "",
    )


def _check(folder: Path, kill: Kill) -> None:
    record = kill_record(folder, kill)
    null = read_record(folder / kill.null) if kill.null else None
    if null is not None and random_null(record, [null]) is None:
        raise ArtifactError(f"kill {kill.id}: {null.name} is no random null of {record.name}")
    verdict = Verdict(kill.why, kill.date, kill.cartridges, kill.documents)
    found = kill_of(record, null, other_record(folder, kill), verdict)
    if found != kill:
        raise ArtifactError(
            f"kill {kill.id} says {kill.stack}, {_measured(kill)}, the records give "
            f"{found.stack}, {_measured(found)}; restore the log"
        )


def _parsed(lines: list[bytes]) -> tuple[tuple[Kill, ...], str]:
    """The kills, and the link of the last line."""
    if not lines or lines[0].decode(errors="replace") != FIRST_LINE:
        raise ArtifactError("line 1 is not that of a kill log; restore the file")
    start = start_link(FIRST_LINE)
    found = list(linked_values(Kill, lines[1:], start))
    return tuple(kill for kill, _ in found), found[-1][1] if found else start


def _beside(folder: Path, against: Path) -> Record:
    """The log knows records by their names alone."""
    if against.resolve().parent != folder.resolve():
        raise ArtifactError(
            f"{against} is not in {folder}, beside the record that is killed; copy both into one "
            "folder"
        )
    return read_record(against)


def _others(folder: Path) -> list[Record]:
    return [read_record(path) for path in record_paths([folder])]
