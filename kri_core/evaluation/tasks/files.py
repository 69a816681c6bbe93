"""Reading a user's data file: every fault is one line that names the place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kri_core.errors import ConfigError


def read_text(path: Path) -> str:
    """The text of a file that holds some."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}; give a UTF-8 file") from error
    if not text.strip():
        raise ConfigError(f"{path} is empty; give a file with data")
    return text


def parse(text: str, where: str) -> Mapping[str, object]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}; repair or remove it") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is a JSON {type(value).__name__}; give an object")
    return value


def held_text(record: Mapping[str, object], key: str, where: str) -> str:
    """A text that must be there."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        found = repr(value)[:40] if key in record else "nothing"
        raise ConfigError(f"{where} has {found} as {key!r}; give a text")
    return value


def held_texts(record: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    """A list of texts that must be there, two or more."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) < 2:
        raise ConfigError(f"{where} has no two texts as {key!r}; give a list of them")
    return tuple(held_text({key: value}, key, where) for value in values)


def place_of(correct: str, options: tuple[str, ...], where: str) -> int:
    """The index of the right option, white space around it aside."""
    bare = tuple(option.strip() for option in options)
    if len(set(bare)) < len(bare):
        twice = next(option for option in bare if bare.count(option) > 1)
        raise ConfigError(f"{where} has the option {twice[:40]!r} twice; make the options differ")
    if correct.strip() not in bare:
        raise ConfigError(
            f"{where} has {correct.strip()[:40]!r} as its answer, which is not among its "
            f"{len(bare)} options; write it as one of them"
        )
    return bare.index(correct.strip())
