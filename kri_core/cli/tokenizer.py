"""The tokenizer a cartridge was made with, for commands that run no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kri_core.errors import EngineError

if TYPE_CHECKING:
    from kri_core.types import Cartridge


def tokenizer_of(cartridge: Cartridge) -> Any:  # noqa: ANN401 - transformers is untyped
    """Load the tokenizer of the model the cartridge records, and check that it is the same one."""
    from kri_core.substrate.hf import load_tokenizer, tokenizer_digest

    model = cartridge.model
    tokenizer = load_tokenizer(model.model_id, model.revision)
    found = tokenizer_digest(tokenizer)
    if model.tokenizer not in (None, found):
        raise EngineError(
            f"the tokenizer of {model.model_id} is not the one cartridge {cartridge.cart_id!r} was "
            "built with; use that model's files as they were"
        )
    return tokenizer
