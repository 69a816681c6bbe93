"""Which cartridge each item of a run was about, kept so that a kill can say it to a later bake.

A file of the cache, named by the digest that a record's header has of its cartridges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kri_core.artifacts.atomic import replacing
from kri_core.identity import canonical_json, digest
from kri_core.running.crossing import Prepared


def keep_documents(cache: Path, prepared: Sequence[Prepared]) -> None:
    """Write it, the same for every row of the run."""
    cartridges = [one.sha256 for one in prepared]
    path = _path(cache, digest(cartridges))
    documents = {item: place for place, one in enumerate(prepared) for item in one.items}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(canonical_json([cartridges, documents]).encode())


def kept_documents(cache: Path, name: str | None) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """The cartridges in the order of documents, and which of them an item is about; or nothing."""
    path = _path(cache, str(name))
    if name is None or not path.exists():
        return (), {}
    cartridges, documents = json.loads(path.read_text())
    return tuple(cartridges), documents


def _path(cache: Path, name: str) -> Path:
    return cache / "documents" / f"{name}.json"
