"""Loading a model by hub id or path, with every failure in one line."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kri_core.errors import ConfigError, EngineError
from kri_core.substrate.hf.exactness import check_config
from kri_core.substrate.hf.model import HfModel

logger = logging.getLogger(__name__)

DTYPES = {
    "auto": "auto",  # what the checkpoint was saved in
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    model: str, revision: str | None = None, dtype: str = "auto", device: str = "auto"
) -> HfModel:
    """A hub id or local directory, checked and ready; transformers reads HF_HOME and the like."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not known; give one of {', '.join(DTYPES)}")
    place = _device(device)
    _check_path(model)
    start = time.perf_counter()
    with _one_line(f"model {model!r} cannot be loaded"):
        config = AutoConfig.from_pretrained(model, revision=revision)
        check_config(config)
        loaded, info = AutoModelForCausalLM.from_pretrained(
            model, revision=revision, config=config, dtype=DTYPES[dtype], output_loading_info=True
        )
    if info["missing_keys"]:
        raise EngineError(
            f"model {model!r} lacks {len(info['missing_keys'])} weights, such as "
            f"{min(info['missing_keys'])}; give a complete checkpoint"
        )
    tokenizer = load_tokenizer(model, revision)
    commit = getattr(config, "_commit_hash", None) or revision
    # Absolute, so that a cartridge still finds its model from another working directory.
    model_id = str(Path(model).resolve()) if Path(model).is_dir() else model
    made = HfModel.from_parts(loaded.to(place), tokenizer, model_id=model_id, revision=commit)
    logger.info("loaded %s on %s in %.1f s", model, place, time.perf_counter() - start)
    return made


def load_tokenizer(model: str, revision: str | None = None) -> Any:  # noqa: ANN401
    """A model's tokenizer by hub id or local directory."""
    _check_path(model)
    with _one_line(f"model {model!r} has no tokenizer that can be loaded"):
        return AutoTokenizer.from_pretrained(model, revision=revision)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device {name!r} is not known; give auto, cpu, cuda or cuda:1")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EngineError(
            f"device {name!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices; "
            "give --device cpu, or install a torch build for your GPU"
        )
    return device


def _check_path(model: str) -> None:
    """What can only be a path is not looked up on the hub."""
    path = Path(model)
    is_path = path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
    if is_path and not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "is not a directory"
        raise EngineError(f"model {model!r} {what}; give a model directory or a hub id")


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise EngineError(
            f"{what}: {reason.strip().rstrip('.')}; check the name, and for a hub model the "
            "network, HF_TOKEN and HF_HUB_OFFLINE"
        ) from error
