"""The installed packages that bring plugins, as their metadata tells it; nothing is imported."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint, distributions

from attrs import frozen

from kri_core.catalogue import canonical_distribution
from kri_core.hookspecs import GROUPS, PROJECT

logger = logging.getLogger(__name__)


@frozen
class Package:
    """One installed distribution that has entry points in groups of ours."""

    name: str  # as pip compares it
    version: str
    summary: str
    requires: tuple[str, ...]
    points: tuple[EntryPoint, ...]
    fault: str  # what of its metadata cannot be read; empty if nothing


def installed_packages() -> Iterator[Package]:
    """Scan the environment once; of two distributions with one name, sys.path's first counts."""
    seen = set()
    for dist in distributions():
        folder = _folder(dist)
        name = canonical_distribution(re.split(r"-|\.(?:dist|egg)-info$", folder)[0])
        if name not in seen:
            seen.add(name)
            package = _package(dist, folder)
            if package is not None:
                yield package


def _folder(dist: Distribution) -> str:
    """Name of the metadata directory: all that a distribution without METADATA still has."""
    path = getattr(dist, "_path", None)
    return str(path.name) if path is not None else str(dist.metadata["Name"])


def _package(dist: Distribution, folder: str) -> Package | None:
    """The distribution as a package; None if it has no group of ours, as nearly all."""
    try:
        text = dist.read_text("entry_points.txt") or ""
    except UnicodeDecodeError:
        logger.warning("entry_points.txt of %s is not UTF-8; plugins in it are not seen", folder)
        return None
    if f"[{PROJECT}." not in text:
        return None
    fault = ""
    try:
        points = tuple(p for p in dist.entry_points if p.group.startswith(f"{PROJECT}."))
    except (TypeError, ValueError):  # what importlib.metadata raises for a line without `=`
        groups = [group for group in GROUPS.values() if f"[{group}]" in text]
        points = tuple(EntryPoint(folder.partition("-")[0], "", group) for group in groups)
        fault = "entry_points.txt"
    fields, requires = _metadata(dist)
    name = fields.get("Name")
    return Package(
        name=canonical_distribution(name) if name else folder,
        version=fields.get("Version", "?"),
        summary=fields.get("Summary", ""),
        requires=requires,
        points=points,
        fault=fault or ("" if name else "METADATA"),
    )


def _metadata(dist: Distribution) -> tuple[dict[str, str], tuple[str, ...]]:
    """Its fields and requirements; none where METADATA is missing or cannot be read."""
    try:
        metadata = dist.metadata  # once: it is parsed anew at every access
        fields = {key: metadata[key] for key in ("Name", "Version", "Summary") if key in metadata}
        return fields, tuple(dist.requires or ())
    except (TypeError, UnicodeDecodeError, OSError):
        return {}, ()
