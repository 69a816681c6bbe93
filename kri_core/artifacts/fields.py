"""Frozen values from plain JSON data, every field's type checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, has

from kri_core.errors import ArtifactError

Value = TypeVar("Value")


def structure(cls: type[Value], data: object, where: str) -> Value:
    """Build an attrs class from a mapping; nothing may be missing, unknown or of another type."""
    if not isinstance(data, Mapping):
        raise ArtifactError(f"{where} must be a mapping; got a {type(data).__name__}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    missing = [name for name in known if name not in data and known[name].default is NOTHING]
    unknown = sorted(str(name) for name in data if name not in known)
    for names, fault in ((missing, "lacks"), (unknown, "has unknown")):
        if names:
            raise ArtifactError(
                f"{where} {fault} {', '.join(names)}; it was written by something else: "
                "write it again with kri-core"
            )
    kinds = _kinds(cls)  # type: ignore[arg-type]  # mypy: a type is no Hashable
    return cls(**{name: _convert(kinds[name], data[name], f"{where}.{name}") for name in data})


@cache  # half the time of reading a record's lines
def _kinds(cls: type) -> dict[str, object]:
    return get_type_hints(cls)


def _convert(kind: object, value: object, where: str) -> object:
    if isinstance(kind, type) and has(kind):
        return structure(kind, value, where)
    if not _fits(kind, value):
        wanted = kind.__name__ if isinstance(kind, type) else str(kind)
        raise ArtifactError(f"{where} must be {wanted}; got {str(value)[:60]!r}; write it again")
    return tuple(value) if isinstance(value, list) else value


def _fits(kind: object, value: object) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(choice, value) for choice in inner)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(inner[0], item) for item in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(inner[0], key) and _fits(inner[1], item) for key, item in value.items()
        )
    return type(value) is (NoneType if kind is None else kind)  # a bool is not an int here
