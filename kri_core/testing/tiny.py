"""Random transformers models of a few thousand weights, their tokenizer and cartridges.

For tests that need a real model class but no real model. Weights are drawn large, biases and norms
too, so that attention is far from uniform and every part shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from kri_core.substrate.hf import HfModel, build_from_tokens
from kri_core.types import Cartridge

SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCAB = 256 + len(SPECIAL)
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "tie_word_embeddings": False,
}


def tiny_llama(**overrides: Any) -> HfModel:  # noqa: ANN401 - configuration values
    """Llama: grouped queries."""
    return tiny("Llama", **overrides)


def tiny_qwen2(**overrides: Any) -> HfModel:  # noqa: ANN401
    """Qwen2: biases on queries, keys and values."""
    return tiny("Qwen2", **overrides)


def tiny_qwen3(**overrides: Any) -> HfModel:  # noqa: ANN401
    """Qwen3: norms on queries and keys."""
    return tiny("Qwen3", **overrides)


def tiny(family: str, *, dtype: torch.dtype = torch.float32, **overrides: Any) -> HfModel:  # noqa: ANN401
    """A `<family>ForCausalLM` with a tokenizer; overrides go to its config."""
    model = tiny_transformers(family, **overrides).to(dtype)
    return HfModel.from_parts(model, tiny_tokenizer(), model_id=f"tiny-{family.lower()}")


def tiny_transformers(family: str, **overrides: Any) -> Any:  # noqa: ANN401
    """The bare transformers model, also of a kind that HfModel refuses."""
    config = getattr(transformers, f"{family}Config")(**SIZES | overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def tiny_tokenizer() -> Any:  # noqa: ANN401
    """One token per byte and five special ones; a text starts with <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: number for number, token in enumerate([*alphabet, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", ids["<s>"])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )


def tiny_cartridge(
    model: HfModel, num_tokens: int = 50, block_size: int = 8, token_ids: Sequence[int] = ()
) -> Cartridge:
    """A cartridge of random tokens; by default six blocks and a tail of two."""
    token_ids = list(token_ids) or random_tokens(num_tokens)
    return build_from_tokens(model, token_ids, cart_id="tiny", block_size=block_size)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """Ordinary token ids, the same for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, 256, (count,), generator=draw)]


def save_tiny(folder: Path, family: str = "Llama", **overrides: Any) -> Path:  # noqa: ANN401
    """A model directory that load_model takes."""
    tiny_transformers(family, **overrides).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
