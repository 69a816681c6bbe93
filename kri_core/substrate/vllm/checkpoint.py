"""A checkpoint's weights as they lie on disk: found, and mapped by the names the hf substrate uses.

Nothing is loaded: a mapped tensor takes no memory but the page cache that the engine's own loading
has just filled.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kri_core.errors import ArtifactError, one_line
from kri_core.substrate.hf.load import quiet

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def directory_of(model: str, revision: str | None, cache: str | None) -> Path:
    """A model's directory; of a hub id, the snapshot that the engine has downloaded."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{model} is neither a directory nor in the hub's cache") from error
    return Path(found)


def outline(config: Any) -> Any:  # noqa: ANN401 - transformers is untyped
    """The hf substrate's model of a config, with names and shapes but no memory."""
    from transformers import AutoModelForCausalLM

    try:
        with quiet(), torch.device("meta"):
            return AutoModelForCausalLM.from_config(copy.deepcopy(config))
    except Exception as error:  # each model's own code, on a config it may not have been made for
        raise ArtifactError(
            f"transformers knows no causal model of {type(config).__name__} ({one_line(error)})"
        ) from error


def stored_parameters(directory: Path, model: Any) -> dict[str, Tensor]:  # noqa: ANN401
    """The parameters of `model` as transformers would load them, mapped; tied ones once."""
    stored = _stored(directory)
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        copies = [other for other, source in ties.items() if source == name]
        held = next((stored[it] for it in (name, *copies) if it in stored), None)
        if held is None or held.shape != parameter.shape:
            what = "has no" if held is None else f"has another shape {list(held.shape)} of"
            raise ArtifactError(f"its checkpoint {what} {name} as transformers stores it")
        found[name] = held
        # transformers ties only what is equal, whatever the config says
        found |= {it: stored[it] for it in copies if it in stored and _differ(stored[it], held)}
    return found


def _stored(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a directory's safetensors files, mapped."""
    from safetensors import SafetensorError, safe_open

    single, index = directory / SINGLE, directory / INDEX
    try:
        if single.is_file():
            files = [SINGLE]
        else:
            files = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        tensors: dict[str, Tensor] = {}
        for file in files:
            with safe_open(directory / file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        raise ArtifactError(
            f"{directory} has no safetensors checkpoint that can be read ({one_line(error)})"
        ) from error
    return tensors


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or not torch.equal(one, other)
