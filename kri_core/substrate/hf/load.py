"""Loading a model by hub id or path, with every failure in one line."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import extract_commit_hash

from kri_core.errors import ConfigError, EngineError, KriError, one_line
from kri_core.models import MODELS
from kri_core.substrate.hf.exactness import check_config
from kri_core.substrate.hf.model import HfModel

logger = logging.getLogger(__name__)

REASON = 240  # characters kept of transformers' own message
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
    start = time.perf_counter()
    with in_one_line(f"model {model!r} cannot be loaded"):
        _check_path(model, "config.json")
        config = AutoConfig.from_pretrained(model, revision=revision)
        check_config(config)
        loaded = _loaded(model, revision, config, dtype)
        commit = commit_of(cached_file(model, "config.json", revision=revision)) or revision
    tokenizer = load_tokenizer(model, revision)
    # Absolute, so that a cartridge still finds its model from another working directory.
    model_id = str(Path(model).resolve()) if Path(model).is_dir() else model
    made = HfModel.from_parts(loaded.to(place), tokenizer, model_id=model_id, revision=commit)
    logger.info("loaded %s on %s in %.1f s", model, place, time.perf_counter() - start)
    return made


def _loaded(model: str, revision: str | None, config: Any, dtype: str) -> Any:  # noqa: ANN401
    """The model with every weight from its checkpoint; transformers would draw them at random."""
    with quiet():
        loaded, info = AutoModelForCausalLM.from_pretrained(
            model,
            revision=revision,
            config=config,
            dtype=DTYPES[dtype],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    if mismatched := info["mismatched_keys"]:
        first = min(mismatched)  # (name, found, wanted), in some releases the name alone
        raise EngineError(
            f"model {model!r} has {len(mismatched)} weights of another shape than its config.json "
            f"says, such as {first if isinstance(first, str) else first[0]}; "
            "give the config.json of this checkpoint"
        )
    if missing := info["missing_keys"]:
        raise EngineError(
            f"model {model!r} lacks {len(missing)} weights, such as {min(missing)}; "
            "give a complete checkpoint"
        )
    if unexpected := info["unexpected_keys"]:
        logger.warning(
            "model %r has no use for %d weights of its checkpoint, such as %s",
            model, len(unexpected), min(unexpected),
        )  # fmt: skip
    return loaded


def commit_of(file: str | None) -> str | None:
    """The commit a file of the hub's cache belongs to; None of any other file.

    transformers 5 no longer says it in a config.
    """
    return extract_commit_hash(file, None)  # type: ignore[no-any-return]


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' table of weights, on which `_loaded` has one line each."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(max(before, logging.ERROR))
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def load_tokenizer(model: str, revision: str | None = None) -> Any:  # noqa: ANN401
    """A model's tokenizer by hub id or local directory."""
    with in_one_line(f"model {model!r} has no tokenizer that can be loaded"):
        _check_path(model, "config.json", "tokenizer_config.json")
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


def _check_path(model: str, *files: str) -> None:
    """What can only be a path, and has none of the files, is not looked up on the hub."""
    path = Path(model)
    is_path = path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
    if (is_path or path.exists()) and not any((path / file).is_file() for file in files):
        what = f"has no {files[0]}" if path.is_dir() else "is not a directory"
        raise EngineError(f"model {model!r} {what}; give a model directory or a hub id")


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """A directory's files are parsed by a dozen libraries, each with errors of its own."""
    try:
        yield
    except KriError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        reason = said if isinstance(error, (OSError, ValueError)) and said else one_line(error)
        raise EngineError(
            f"{what}: {shorten(reason, REASON, placeholder=' …').rstrip('.')}; check the name "
            f"(kri-core model get {next(iter(MODELS))} fetches the embedded one), and for a hub "
            "model the network, HF_TOKEN and HF_HUB_OFFLINE"
        ) from error
