"""Who a loaded model is, in words that do not depend on the transformers release or the dtype."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kri_core.identity import ModelIdentity, canonical_json, digest
from kri_core.substrate.hf.exactness import Anatomy

SAMPLES = 1024  # elements looked at in each parameter
SPECIAL = ("bos_token", "eos_token", "unk_token")


def identify(
    model: Any,  # noqa: ANN401 - transformers is untyped
    tokenizer: Any,  # noqa: ANN401
    anatomy: Anatomy,
    model_id: str,
    revision: str | None,
) -> ModelIdentity:
    """The identity of a model and, if there is one, its tokenizer."""
    heads = (anatomy.num_q_heads, anatomy.num_kv_heads, anatomy.head_dim)
    return ModelIdentity(
        model_id=model_id,
        revision=revision,
        architecture=architecture_of(model, len(anatomy.layers), *heads),
        rope=rope_of(model.config.get_text_config(decoder=True)),
        weights=weights_digest(model),
        tokenizer=None if tokenizer is None else tokenizer_digest(tokenizer),
    )


def architecture_of(
    model: Any,  # noqa: ANN401 - transformers is untyped
    layers: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
) -> str:
    """A model's class and sizes as canonical JSON; it may have no memory (the meta device)."""
    config = model.config.get_text_config(decoder=True)
    architecture = {
        "class": type(model).__name__,
        "layers": layers,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }
    return canonical_json(architecture)


def rope_of(config: Any) -> str:  # noqa: ANN401
    """Every RoPE parameter as canonical JSON.

    transformers 5 keeps them in `rope_parameters`, 4 in `rope_theta`, `rope_scaling` and
    `partial_rotary_factor`. Both give the same text: numbers as floats, what only repeats a default
    left out, and the original length filled in where a scaling reads it.
    """
    known = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope = {name: value for name, value in known.items() if value is not None and name != "type"}
    rope.setdefault("rope_type", known.get("type", "default"))
    for name in ("rope_theta", "partial_rotary_factor"):
        if getattr(config, name, None) is not None:
            rope.setdefault(name, getattr(config, name))
    if rope["rope_type"] in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", config.max_position_embeddings)
    if rope.get("partial_rotary_factor") == 1:
        del rope["partial_rotary_factor"]
    return canonical_json(
        {
            name: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
            for name, value in rope.items()
        }
    )


def weights_digest(model: nn.Module) -> str:
    """sha256 over the sign bits of evenly strided elements of every parameter, by name.

    Signs survive a cast to bfloat16 or float16, so one model has one digest in every dtype, while
    another training run flips some of the several hundred thousand signs. Of parameters that are
    stored as integers (quantised weights) the values themselves are taken. Tied parameters count
    once, so it does not matter whether a checkpoint also stores the copy.
    """
    return digest_of(dict(model.named_parameters()))


def digest_of(parameters: Mapping[str, Tensor]) -> str:
    """`weights_digest` of parameters by name, which may be mapped from a file."""
    content = hashlib.sha256()
    for name, parameter in sorted(parameters.items()):
        content.update(f"{name} {list(parameter.shape)}\n".encode())
        content.update(_sample(parameter.detach()).cpu().numpy().tobytes())
    return content.hexdigest()


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.flatten()
    count = min(SAMPLES, flat.numel())
    index = torch.arange(count, device=flat.device) * flat.numel() // max(count, 1)
    picked = flat[index]
    return picked.signbit() if picked.is_floating_point() else picked


def tokenizer_digest(tokenizer: Any) -> str:  # noqa: ANN401
    """Digest of the vocabulary, the added tokens, and which of them start and end a text.

    The chat template is left out: it shapes the text that is tokenised, not what the ids mean, and
    it is edited after release more often than anything else. So is the padding token, which users
    set as they need it.
    """
    special = {name: str(tokenizer.special_tokens_map.get(name)) for name in SPECIAL}
    added = {id_: str(token) for id_, token in tokenizer.added_tokens_decoder.items()}
    return digest(tokenizer.get_vocab(), added, special)
