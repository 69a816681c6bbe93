"""The lines of a record's file, each tied to all before it, so that a later edit shows.

Each line carries a link: sha256 over the link before it and its own content; the first is over the
header line. So a line that was edited, moved, lost or put in is found, and so is a header that was
swapped. Lines lost from the end are found by their number, which the header knows. Whoever edits
a file and computes every later link anew is not found by this file alone: the board carries each
file's last link (`seal`), so that both, and their history in git, would have to be rewritten.
"""

from __future__ import annotations

from attrs import AttrsInstance, asdict

from kri_core.evaluation.records import FORMAT_VERSION, Header
from kri_core.identity import canonical_json, digest

LINK_DIGITS = 16  # of sha256: against accidents and a quick edit, not against a forger


def first_line(header: Header, date: str) -> str:
    """A file's first line."""
    held = {"date": date, "digest": header.digest, "header": asdict(header)}
    return canonical_json({"kri_core_results": FORMAT_VERSION, **held})


def linked_line(value: AttrsInstance, previous: str) -> tuple[str, str]:
    """A value's line after the one with the link `previous`, and its own link."""
    content = asdict(value)
    own = link(previous, content)
    return canonical_json({**content, "link": own}), own


def link(previous: str, content: object) -> str:
    """What ties a line to all before it."""
    return digest(previous, content)[:LINK_DIGITS]


def start_link(line: str) -> str:
    """The link that the first item's line follows."""
    return link("", line)
