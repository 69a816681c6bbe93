"""Checking results without a model: every record whole and as written, every board theirs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from attrs import frozen

from kri_core.artifacts.opening import naming, opened
from kri_core.errors import ArtifactError
from kri_core.evaluation.board import Leaderboard, leaderboard
from kri_core.evaluation.board_text import to_json, to_markdown
from kri_core.evaluation.kill_log import TITLE, check_kills
from kri_core.evaluation.kill_log import to_markdown as kill_page
from kri_core.evaluation.kills import Kill
from kri_core.evaluation.page import to_html
from kri_core.evaluation.published import Published
from kri_core.evaluation.reading import KILL_LOG, read_record, record_paths
from kri_core.evaluation.records import Record, check_complete

WRITERS = {".html": to_html, ".json": to_json, ".md": to_markdown}


@frozen
class Verified:
    """What was found to hold."""

    records: tuple[Record, ...]
    boards: tuple[Path, ...]
    kills: tuple[Kill, ...]


def verify(paths: Sequence[Path], published: Published | None = None) -> Verified:
    """Read every record line by line, then make every board again and compare it to the letter.

    A board's file ends in .html, .json or .md; it must be the board of all the records. A .md that
    begins as the kill log's page does must be the page of all kills.
    """
    boards = tuple(path for path in paths if path.suffix in WRITERS)
    records = read_all([path for path in paths if path.suffix not in WRITERS])
    for record in records:
        check_complete(record)
    kills = tuple(kill for folder in kill_folders(paths) for kill in check_kills(folder))
    found = None
    for path in boards:
        with naming(path):
            held = _lines(path)
            if held[:1] == [TITLE]:
                _check_same(held, kill_page(kills), "kill-log")
            else:
                found = found or leaderboard(records, published)
                hint = "" if published else "; if it was made with --published, give that too"
                _check_same(held, board_text(found, path), "leaderboard", hint)
    return Verified(records, boards, kills)


def kill_folders(paths: Sequence[Path]) -> list[Path]:
    """The folders among the paths that have a kill log."""
    return [path for path in dict.fromkeys(paths) if (path / KILL_LOG).exists()]


def read_all(paths: Sequence[Path]) -> tuple[Record, ...]:
    """The records of files and folders; each file once."""
    found = [read_record(path) for path in record_paths(paths)]
    if not found:
        raise ArtifactError(
            f"no record in {', '.join(map(str, paths)) or 'nothing'}; give results/ or its files"
        )
    return tuple(found)


def board_text(found: Leaderboard, path: Path) -> str:
    """What a board's file of this suffix holds."""
    if path.suffix not in WRITERS:
        raise ArtifactError(f"{path.name}: a board is a {' or a '.join(WRITERS)}; name it so")
    return WRITERS[path.suffix](found)


def _lines(path: Path) -> list[str]:
    with opened(path) as file:
        return file.read().decode(errors="replace").splitlines()


def _check_same(held: Sequence[str], text: str, command: str, hint: str = "") -> None:
    lines = zip_longest(held, text.splitlines())
    for number, (is_line, must_be) in enumerate(lines, start=1):
        if is_line != must_be:
            raise ArtifactError(
                f"line {number} is {_short(is_line)}, the records give {_short(must_be)}; write it "
                f"again with kri-core eval {command}, or restore the records{hint}"
            )


def _short(line: str | None) -> str:
    """A line whole: a wrong digit may be at its end."""
    return "missing" if line is None else repr(line.strip())
