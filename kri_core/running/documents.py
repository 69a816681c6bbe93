"""Which cartridge each item of a run was about, kept so that a kill can say it to a later bake.

A file of the cache, named by the digest that a record's header has of its cartridges and the items.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kri_core.artifacts.atomic import replacing
from kri_core.artifacts.opening import naming
from kri_core.identity import canonical_json, digest
from kri_core.running.crossing import Prepared

logger = logging.getLogger(__name__)


def keep_documents(cache: Path, prepared: Sequence[Prepared]) -> None:
    """Write it, the same for every row of the run."""
    cartridges = [one.sha256 for one in prepared]
    documents = {item: place for place, one in enumerate(prepared) for item in one.items}
    path = _path(cache, digest(cartridges), documents)
    data = canonical_json([cartridges, documents]).encode()
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), replacing(path) as file:
        file.write(data)


def kept_documents(
    cache: Path, name: str | None, items: Iterable[str]
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """The cartridges in the order of documents, and which of them an item is about; or nothing.

    Nothing, too, where the file is damaged: a kill is recorded without it.
    """
    path = _path(cache, str(name), items)
    try:
        cartridges, documents = json.loads(path.read_text())
        return tuple(cartridges), dict(documents)
    except FileNotFoundError:
        return (), {}
    except (OSError, ValueError, TypeError) as error:
        logger.warning("%s is not read: %s", path, error)
        return (), {}


def _path(cache: Path, name: str, items: Iterable[str]) -> Path:
    return cache / "documents" / f"{digest(name, sorted(set(items)))}.json"
