"""The same cartridge or prior in another file, its format by suffix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kri_core.artifacts.cartridge_file import read_cartridge, verify_cartridge, write_cartridge
from kri_core.artifacts.contents import check_target
from kri_core.artifacts.foreign import load_foreign, read_foreign_cartridge
from kri_core.artifacts.opening import naming
from kri_core.artifacts.prior_file import read_prior, write_prior
from kri_core.errors import ConfigError
from kri_core.identity import ModelIdentity
from kri_core.prior import Prior
from kri_core.types import Cartridge


def convert_cartridge(
    source: Path, target: Path, block_size: int | None, model: ModelIdentity | None
) -> Cartridge:
    """Rewrite a cartridge, verified first, or import a foreign one.

    A foreign one needs block_size and model, which it does not record; kri-core's own takes
    neither, as it carries them.
    """
    check_target(target)
    if is_native(source):
        if block_size is not None or model is not None:
            raise ConfigError(f"{source} carries its own block size and model; leave them out")
        cartridge = verify_cartridge(source)
    elif block_size is None or model is None:
        raise ConfigError(
            f"{source} records neither block size nor model, as it is not kri-core's own; give both"
        )
    else:
        cartridge = read_foreign_cartridge(source, block_size, model)
    write_cartridge(cartridge, target)
    return read_cartridge(target)


def is_native(path: Path) -> bool:
    """Whether a cartridge file is kri-core's own; a foreign one is always a torch file."""
    with naming(path):
        if path.suffix.lower() == ".safetensors":
            return True
        held = load_foreign(path)
        return isinstance(held, Mapping) and "header" in held


def convert_prior(source: Path, target: Path) -> Prior:
    """Rewrite a prior; whatever it was, its scores become float32."""
    check_target(target)
    prior = read_prior(source)
    write_prior(prior, target)
    return prior
