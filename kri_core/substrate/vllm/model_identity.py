"""Who the served model is, in the words a cartridge uses, from its files and without loading it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from kri_core.errors import ArtifactError, EngineError
from kri_core.identity import ModelIdentity
from kri_core.substrate.hf.identity import architecture_of, digest_of, rope_of, tokenizer_digest
from kri_core.substrate.hf.load import commit_of, load_tokenizer
from kri_core.substrate.vllm.checkpoint import directory_of, outline, stored_parameters

logger = init_logger("vllm.kri_core.model_identity")


def served_identity(model_config: Any, load_config: Any) -> ModelIdentity:  # noqa: ANN401
    """As `substrate.hf.identity` names it; what cannot be had is None, and agrees with all."""
    architecture = weights = revision = None
    try:
        model = outline(model_config.hf_config)
        architecture = _architecture(model, model_config)
        directory = local_files(model_config, load_config)
        revision = commit_of(str(directory / "config.json")) or model_config.revision
        weights = _weights(directory, model, model_config, load_config)
    except ArtifactError as error:
        logger.warning("the weights of cartridges are not compared with the model's: %s", error)
    return ModelIdentity(
        model_id=str(model_config.model),
        revision=None if revision is None else str(revision),
        architecture=architecture,
        rope=rope_of(model_config.hf_config.get_text_config(decoder=True)),
        weights=weights,
        tokenizer=_tokenizer(model_config),
    )


def local_files(model_config: Any, load_config: Any) -> Path:  # noqa: ANN401
    """Where the served model's files are on this machine."""
    return directory_of(model_config.model, model_config.revision, load_config.download_dir)


def token_text(model_config: Any) -> Callable[[int], str]:  # noqa: ANN401
    """A token's text, for a line about a prompt; the tokenizer is loaded when first asked."""

    @cache
    def tokenizer() -> Any:  # noqa: ANN401
        return load_tokenizer(model_config.tokenizer, model_config.tokenizer_revision)

    return lambda token: repr(tokenizer().decode([token]))


def _architecture(model: Any, model_config: Any) -> str:  # noqa: ANN401
    text = model.config.get_text_config(decoder=True)
    return architecture_of(
        model,
        layers=text.num_hidden_layers,
        q_heads=text.num_attention_heads,
        kv_heads=model_config.get_total_num_kv_heads(),
        head_dim=model_config.get_head_size(),
    )


def _weights(directory: Path, model: Any, model_config: Any, load_config: Any) -> str:  # noqa: ANN401
    if model_config.quantization is not None:
        raise ArtifactError(f"they are quantised ({model_config.quantization})")
    if load_config.load_format == "dummy":
        raise ArtifactError("load_format=dummy draws them at random")
    return digest_of(stored_parameters(directory, model))


def _tokenizer(model_config: Any) -> str | None:  # noqa: ANN401
    if model_config.skip_tokenizer_init:
        return None
    try:
        found = load_tokenizer(model_config.tokenizer, model_config.tokenizer_revision)
    except EngineError as error:
        logger.warning("the tokenizers of cartridges are not compared with the model's: %s", error)
        return None
    return tokenizer_digest(found)
