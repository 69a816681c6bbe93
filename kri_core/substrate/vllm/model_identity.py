"""Who the served model is, in the words a cartridge uses, from its files and without loading it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kri_core.identity import ModelIdentity


def served_identity(model_config: Any) -> ModelIdentity:  # noqa: ANN401
    """As `substrate.hf.identity` names it."""
    return ModelIdentity(str(model_config.model))


def token_text(model_config: Any) -> Callable[[int], str]:  # noqa: ANN401
    """A token's text, for a line about a prompt; the tokenizer is loaded when first asked."""

    @cache
    def tokenizer() -> Any:  # noqa: ANN401
        from kri_core.substrate.hf.load import load_tokenizer

        return load_tokenizer(model_config.tokenizer, model_config.tokenizer_revision)

    return lambda token: repr(tokenizer().decode([token]))
