"""Cartridges of other tools: a TrainableCache dict, a list of (k, v), a list of {"k", "v"}.

Every tensor is [1, kv_head, token, head_dim], keys post-RoPE. None of the three says which model
made it or which tokens it stands for; `prefix_token_ids.json` beside it may give the tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kri_core.artifacts.opening import naming, opened
from kri_core.artifacts.sealing import block_major, seal
from kri_core.artifacts.tensors import plain
from kri_core.artifacts.torch_file import load
from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity
from kri_core.types import Cartridge

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

TOKEN_IDS_FILE = "prefix_token_ids.json"  # noqa: S105 - a file's name
LISTS = "a list of (k, v) or of {'k', 'v'} by layer"
Parts = list[tuple[Sequence[object], Sequence[object]]]  # keys and values by layer, per part


def load_foreign(path: Path) -> object:
    """The file's plain contents; torch's ParameterList is the one class allowed beside them."""
    from torch.nn import ParameterList

    return load(path, [ParameterList])


def read_foreign_cartridge(
    path: Path, block_size: int, model: ModelIdentity, token_ids_path: Path | None = None
) -> Cartridge:
    """Import a cartridge; holds the result and one layer at a time.

    Its tokens are in `token_ids_path`, or in a `prefix_token_ids.json` beside it; without either,
    token_ids are empty and the prefix_hash is over the content. A TrainableCache is trained; lists
    are taken as prefilled.
    """
    with naming(path):
        held = load_foreign(path)
        trained = isinstance(held, Mapping)
        parts = _trainable_parts(held) if isinstance(held, Mapping) else _listed_parts(held)
        num_layers = len(parts[0][0])
        kv, tail = block_major(_layers(parts), num_layers, block_size)
        token_ids = _token_ids(path) if token_ids_path is None else _listed_ids(token_ids_path)
        _check_count(token_ids, kv.shape[0] * block_size + tail.shape[3])
        return seal(path.stem, block_size, model, token_ids, kv, tail, trained)


def _trainable_parts(held: Mapping[object, object]) -> Parts:
    """Frozen tokens come first, as TrainableCache itself puts them."""
    frozen = next((name for name in ("frozen", "fixed") if f"{name}_keys" in held), None)
    names = ["trainable"] if frozen is None else [frozen, "trainable"]
    _check_keys(held, {f"{name}_{side}" for name in names for side in ("keys", "values")})
    parts = {
        name: (_per_layer(f"{name}_keys", held), _per_layer(f"{name}_values", held))
        for name in names
    }
    if frozen is not None and not any(parts[frozen]):  # there may be none
        del parts[frozen]
    num_layers = max(len(parts["trainable"][0]), 1)
    for name, sides in parts.items():
        for side, layers in zip(("keys", "values"), sides, strict=True):
            if len(layers) != num_layers:
                raise ArtifactError(
                    f"{name}_{side} has {len(layers)} layers, wanted {num_layers} as in the other "
                    "parts; it is damaged: save it again"
                )
    return list(parts.values())


def _check_keys(held: Mapping[object, object], wanted: set[str]) -> None:
    found = set(map(str, held))
    for names, fault in ((wanted - found, "lacks"), (found - wanted, "has unknown key")):
        if names:
            raise ArtifactError(
                f"{fault} {', '.join(sorted(names))}; a TrainableCache has trainable_keys and "
                f"_values, and frozen_ or fixed_keys and _values; wanted that, or {LISTS}"
            )


def _per_layer(name: str, held: Mapping[object, object]) -> Sequence[object]:
    from torch.nn import ParameterList

    value = held[name]
    if value is None:
        return ()
    if not isinstance(value, (list, tuple, ParameterList)):
        raise ArtifactError(f"{name} is a {type(value).__name__}, wanted one tensor per layer")
    try:
        return tuple(value)
    except (AttributeError, TypeError) as error:
        raise ArtifactError(f"{name} is a damaged ParameterList; save it again") from error


def _listed_parts(held: object) -> Parts:
    pairs = [_pair(item) for item in held] if isinstance(held, (list, tuple)) else []
    if not pairs or None in pairs:
        raise ArtifactError(
            f"holds a {type(held).__name__} that is neither a TrainableCache dict nor {LISTS}; "
            "convert it to one of these"
        )
    return [([pair[0] for pair in pairs if pair], [pair[1] for pair in pairs if pair])]


def _pair(item: object) -> tuple[object, object] | None:
    if isinstance(item, Mapping) and set(item) == {"k", "v"}:
        return item["k"], item["v"]
    if isinstance(item, (list, tuple)) and len(item) == 2:
        return item[0], item[1]
    return None


def _layers(parts: Parts) -> Iterator[tuple[Tensor, Tensor]]:
    for layer in range(len(parts[0][0])):
        keys = _joined([part[0][layer] for part in parts], f"layer {layer}'s keys")
        yield keys, _joined([part[1][layer] for part in parts], f"layer {layer}'s values")


def _joined(parts: list[object], name: str) -> Tensor:
    """One after the other along the token axis, [kv_head, token, head_dim]."""
    import torch

    tensors = [plain(name, part) for part in parts]
    for tensor in tensors:
        if tensor.ndim != 4 or tensor.shape[0] != 1:
            raise ArtifactError(
                f"{name} must be [1, kv_head, token, head_dim]; got {list(tensor.shape)}"
            )
    kinds = {(t.dtype, t.shape[1], t.shape[3]) for t in tensors}
    if len(kinds) > 1:  # torch.cat would cast in silence
        raise ArtifactError(f"{name} differ between frozen and trainable in dtype, heads or size")
    return tensors[0][0] if len(tensors) == 1 else torch.cat(tensors, 2)[0]


def _token_ids(path: Path) -> Sequence[int]:
    """Empty, and said, where there is no such file."""
    beside = path.with_name(TOKEN_IDS_FILE)
    if not beside.exists():
        logger.warning(
            "%s: no %s beside it, so its token ids are not known: nothing of it can be prefilled "
            "again, and requests cannot name it by their tokens",
            path,
            TOKEN_IDS_FILE,
        )
        return ()
    return _listed_ids(beside)


def _listed_ids(path: Path) -> Sequence[int]:
    with opened(path) as file:
        try:
            token_ids = json.loads(file.read())
        except ValueError as error:
            raise ArtifactError(f"{path.name} beside it is not JSON; write it again") from error
    if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
        raise ArtifactError(f"{path.name} beside it must be one list of whole numbers")
    return token_ids


def _check_count(token_ids: Sequence[int], num_tokens: int) -> None:
    if len(token_ids) not in (0, num_tokens):
        raise ArtifactError(
            f"has {num_tokens} tokens, but {TOKEN_IDS_FILE} beside it lists {len(token_ids)}; put "
            "this cartridge's own there, or take it away"
        )
