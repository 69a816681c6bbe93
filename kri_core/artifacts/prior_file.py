"""Priors on disk: `block_affinities`, `kmeans_blocks_perK`, `kmeans_blocks`, `summary.*`, `meta`.

In a .pt these are a tensor, a dict of lists, a list, tensors and a dict, as other tools write them.
In a .safetensors the lists are int64 tensors (`kmeans_blocks_perK.<K>`, one for each K: JSON would
turn its keys into text) and meta is JSON. Priors are small, so they are read whole, not mapped.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import asdict

from kri_core.artifacts.contents import is_safetensors, read_fields, write_fields
from kri_core.artifacts.fields import structure
from kri_core.artifacts.opening import naming
from kri_core.artifacts.tensors import dtype_name, plain
from kri_core.errors import ArtifactError, PluginError
from kri_core.identity import canonical_json
from kri_core.prior import Prior, PriorMeta
from kri_core.types import BlockScores

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
SCORES, PER_BUDGET, BLOCKS = "block_affinities", "kmeans_blocks_perK", "kmeans_blocks"
SUMMARY, META = "summary.", "meta"
KEYS = (SCORES, PER_BUDGET, BLOCKS, META)
LEGACY_KMEANS = "kri_g"  # upstream's tag; ALGORITHMS 3


def write_prior(prior: Prior, path: Path) -> None:
    """Write .safetensors or .pt by suffix, whole or not at all."""
    tensors = {f"{SUMMARY}{name}": tensor for name, tensor in prior.summary.items()}
    if prior.scores is not None:
        tensors[SCORES] = prior.scores.values
    meta = {**asdict(prior.meta), "params": dict(prior.meta.params)} if prior.meta else None
    texts: dict[str, object] = {}
    with naming(path):
        if is_safetensors(path):
            tensors |= _list_tensors(prior)
            texts = {META: canonical_json(meta)} if meta else {}
        else:
            lists = {budget: list(ids) for budget, ids in prior.blocks_per_budget.items()}
            held = {PER_BUDGET: lists, BLOCKS: list(prior.blocks or ()), META: meta}
            texts = {name: value for name, value in held.items() if value}
        write_fields(path, texts, tensors)


def _list_tensors(prior: Prior) -> dict[str, Tensor]:
    import torch

    lists = {f"{PER_BUDGET}.{budget}": ids for budget, ids in prior.blocks_per_budget.items()}
    if prior.blocks is not None:
        lists[BLOCKS] = prior.blocks
    return {name: torch.tensor(ids, dtype=torch.int64) for name, ids in lists.items()}


def read_prior(path: Path) -> Prior:
    """Read and check a prior; what it leaves open is logged as a warning."""
    with naming(path):
        held = read_fields(path)
        if "header" in held and not held.keys() & set(KEYS):
            raise ArtifactError("is a cartridge, not a prior; kri-core bake makes a prior of it")
        if is_safetensors(path):
            held = _gathered(held)
        budgets = held.get(PER_BUDGET, {})
        if not isinstance(budgets, Mapping):
            raise ArtifactError(f"{PER_BUDGET} is a {type(budgets).__name__}, wanted {{K: list}}")
        prior = Prior(
            scores=_scores(held[SCORES]) if SCORES in held else None,
            blocks_per_budget={
                budget: _block_ids(f"{PER_BUDGET}[{budget}]", ids)
                for budget, ids in budgets.items()
            },
            blocks=_block_ids(BLOCKS, held[BLOCKS]) if BLOCKS in held else None,
            summary={
                name.removeprefix(SUMMARY): _summary(name, value)
                for name, value in held.items()
                if name.startswith(SUMMARY)
            },
            meta=_meta(held[META]) if META in held else None,
        )
    for warning in _warnings(prior, held):
        logger.warning("%s: %s", path, warning)
    return prior


def _gathered(fields: Mapping[str, object]) -> dict[str, object]:
    """A .safetensors file's fields as a .pt has them: lists by K in one dict, meta parsed."""
    held = {name: value for name, value in fields.items() if not name.startswith(f"{PER_BUDGET}.")}
    lists = {}
    for name in fields.keys() - held.keys():
        budget = name.removeprefix(f"{PER_BUDGET}.")
        if not re.fullmatch("[1-9][0-9]{0,17}", budget):
            raise ArtifactError(f"{name} must end in a whole number K; write it again")
        lists[int(budget)] = fields[name]
    if lists:
        held[PER_BUDGET] = lists
    if META in held:
        try:
            held[META] = json.loads(str(held[META]))
        except (ValueError, RecursionError) as error:
            raise ArtifactError("has a meta that is not JSON; bake it again") from error
    return held


def _scores(value: object) -> BlockScores:
    """float32 scores; other floats are cast, which can overflow, hence the check after it."""
    import torch

    tensor = plain(SCORES, value)
    if not tensor.is_floating_point():
        raise ArtifactError(
            f"{SCORES} are {dtype_name(tensor)}, wanted floats (higher = keep): whole numbers are "
            "as likely ranks or block ids; save them as floats if they are scores"
        )
    try:
        return BlockScores(tensor.to(torch.float32, copy=True))
    except PluginError as error:
        raise ArtifactError(f"{SCORES}: {error}; bake it again") from error


def _block_ids(name: str, value: object) -> tuple[int, ...]:
    import torch

    if isinstance(value, torch.Tensor):
        tensor = plain(name, value)
        value = tensor.tolist() if tensor.ndim == 1 else f"tensor of shape {list(tensor.shape)}"
    if not isinstance(value, (list, tuple)):
        raise ArtifactError(f"{name} is {str(value)[:60]}, wanted a list of block ids")
    return tuple(value)


def _summary(name: str, value: object) -> Tensor:
    tensor = plain(name, value).clone()
    if not bool(tensor.isfinite().all()):
        raise ArtifactError(f"{name} holds NaN or infinity; bake it again")
    return tensor


def _meta(value: object) -> PriorMeta:
    version = value.get("schema_version") if isinstance(value, Mapping) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ArtifactError(
            f"is of prior schema {version}, this kri-core reads up to {SCHEMA_VERSION}; "
            "upgrade kri-core"
        )
    return structure(PriorMeta, value, META)


def _warnings(prior: Prior, held: Mapping[str, object]) -> Iterator[str]:
    """What may surprise whoever uses the prior, yet is no error."""
    if prior.meta is None:
        yield (
            "it has no meta and binds to nothing: it cannot be told whether it was made for the "
            "cartridge it is used with"
        )
    present = [name for name in (PER_BUDGET, SCORES, BLOCKS) if name in held]
    if len(present) > 1:
        yield f"it holds several answers; the first that fits counts: {', '.join(present)}"
    if held.get("prior_type") == LEGACY_KMEANS:
        yield (
            f"its prior_type {LEGACY_KMEANS!r} is geometric k-means, here kmeans-keys; it is no "
            "prior of the scorer kri-g"
        )
    unknown = [name for name in held if name not in KEYS and not name.startswith(SUMMARY)]
    if unknown:
        yield f"keys that mean nothing here are ignored: {', '.join(unknown)}"
    for budget, ids in prior.blocks_per_budget.items():
        if len(ids) < min(budget, prior.num_blocks or budget):
            yield f"{PER_BUDGET}[{budget}] lists {len(ids)} blocks; the earliest others fill it up"
