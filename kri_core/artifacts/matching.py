"""Whether a cartridge belongs to a model."""

from __future__ import annotations

from kri_core.errors import ArtifactError
from kri_core.identity import ModelIdentity
from kri_core.types import Cartridge

SHOWN = 80  # of a value in a message; a RoPE config or digest is longer than a line


def check_model(cartridge: Cartridge, model: ModelIdentity) -> None:
    """Refuse a cartridge of another model, revision, tokenizer or RoPE, by name of the field."""
    name = cartridge.model.mismatch(model)
    if name is not None:
        had, has = (str(getattr(side, name))[:SHOWN] for side in (cartridge.model, model))
        raise ArtifactError(
            f"cartridge {cartridge.cart_id!r} was made with {name} {had}, the model has {has}; "
            f"use the model it was made with ({cartridge.model.model_id}) or build it again"
        )
