"""A server's trace: a JSON line per routed request, which another stack can be asked of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from attrs import asdict, frozen

from kri_core.artifacts.opening import naming, opened
from kri_core.errors import ArtifactError, ConfigError

SCHEMA_VERSION = 1
WHOLE = range(1 << 31)


@frozen
class TracedRequest:
    """What was asked and decided; the document's tokens are the cartridge's and not repeated."""

    time: float  # seconds since 1970
    request_id: str
    cartridge: str
    cartridge_sha256: str
    stack: str  # canonical, scorer included
    block_size: int
    kept: tuple[int, ...]
    question_token_ids: tuple[int, ...]
    schema_version: int = SCHEMA_VERSION

    def to_line(self) -> str:
        """As it stands in the file."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of_line(cls, line: bytes) -> TracedRequest:
        """From the file; an ArtifactError says what is wrong with the line."""
        try:
            held = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"is no JSON ({error}); give a server's trace, whole") from error
        fields = get_type_hints(cls)
        if not isinstance(held, dict) or held.get("schema_version") != SCHEMA_VERSION:
            raise ArtifactError(f"is no line of a trace of version {SCHEMA_VERSION}; trace again")
        if held.keys() != fields.keys():
            named = ", ".join(map(repr, sorted(held.keys() ^ fields.keys())))
            raise ArtifactError(f"has a field too many or too few ({named}); trace again")
        return cls(**{name: _checked(name, value) for name, value in held.items()})


def _checked(name: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    """As a server writes it; lists of whole numbers as tuples."""
    if name in ("kept", "question_token_ids"):
        if isinstance(value, list) and all(type(item) is int and item in WHOLE for item in value):
            return tuple(value)
        raise ArtifactError(f"{name} is no list of whole numbers; trace again")
    if name == "time":
        fits = type(value) in (int, float)
    elif name in ("block_size", "schema_version"):
        fits = type(value) is int and value in WHOLE
    else:
        fits = isinstance(value, str) and value.isprintable()
    if not fits:
        raise ArtifactError(f"{name} is not what a server writes; trace again")
    return value


def check_writable(path: Path) -> None:
    """When a server starts, not when its first request is routed."""
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"trace {path} cannot be written ({error.strerror}); give another file"
        ) from error


def read_trace(path: Path) -> Iterator[TracedRequest]:
    """Line by line, so that a long trace is not held."""
    with naming(path), opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                request = TracedRequest.of_line(line)
            except ArtifactError as error:
                raise ArtifactError(f"line {number} {error}") from error
            yield request
