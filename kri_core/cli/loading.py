"""The model and tokenizer a cartridge was made with, checked to be those."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kri_core.errors import ConfigError

if TYPE_CHECKING:
    from kri_core.substrate.hf import HfModel
    from kri_core.types import Cartridge


def load(name: str, revision: str | None, dtype: str, device: str) -> HfModel:
    """Load what --model names: an alias, a hub id or a path."""
    from kri_core.models import resolve_model
    from kri_core.substrate.hf import load_model

    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    return load_model(resolve_model(name), revision, dtype, device)


def load_model_of(
    cartridge: Cartridge, name: str | None, revision: str | None, dtype: str, device: str
) -> HfModel:
    """Load the named model, by default the recorded one; another model is refused by field.

    dtype "auto" is the cartridge's own.
    """
    from kri_core.artifacts import check_model
    from kri_core.artifacts.tensors import dtype_name

    if name is None and not cartridge.model.model_id:
        raise ConfigError(
            f"cartridge {cartridge.cart_id!r} records no model; give one with --model"
        )
    model = load(
        name or cartridge.model.model_id,
        revision or (cartridge.model.revision if name is None else None),
        dtype_name(cartridge.kv) if dtype == "auto" else dtype,
        device,
    )
    check_model(cartridge, model.identity)
    return model
