r"""SmolLM2-135M-Instruct out of a GGUF file, as a plain float32 model directory.

transformers reads the file's weights, but its tokenizer for it is not the model's. The file says
`tokenizer.ggml.pre = smollm`, for which llama.cpp splits off every `\p{N}` before the GPT-2
pattern, as the model's own tokenizer.json does; transformers 4.56 to 5.24 know no such name and
use the GPT-2 pattern alone. "a\n\n1." then becomes `a Ċ Ċ 1 .` where the model was trained on
`a ĊĊ 1 .`, so the tokenizer is built here from the file's tokens and merges.
"""

from __future__ import annotations

import json
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

ROPE_THETA = 100_000.0
CONFIG = {  # HuggingFaceTB/SmolLM2-135M-Instruct, config.json
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": ROPE_THETA,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}
CONTROL = 3  # the GGUF token type of special tokens


def convert(gguf: Path, directory: Path) -> None:
    """Write model and tokenizer so that transformers 4.56 and 5 load the same from them."""
    from safetensors import SafetensorError

    try:
        with redirect_stderr(StringIO()):  # progress bars of three libraries, terminal or not
            _read_model(gguf).save_pretrained(directory)
            _read_tokenizer(gguf).save_pretrained(directory)
    except SafetensorError as error:
        raise OSError(str(error)) from error  # a full disk, in safetensors' words
    # 4.56 reads rope_theta and falls back to 10000 without it; 5 reads rope_parameters
    rope = {"rope_type": "default", "rope_theta": ROPE_THETA}
    _update_json(directory / "config.json", rope_theta=ROPE_THETA, rope_parameters=rope)
    # transformers 5 names a class here that 4.56 does not have
    _update_json(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    (directory / "model.safetensors").chmod(0o644)  # safetensors writes 0600


def _read_model(gguf: Path) -> LlamaForCausalLM:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    quantised = LlamaForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    return model


def _read_tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def held(name: str) -> list[Any]:
        field = fields[f"tokenizer.{name}"]
        return [field.parts[index] for index in field.data]

    def texts(name: str) -> list[str]:
        return [bytes(part).decode() for part in held(name)]

    tokens = texts("ggml.tokens")
    types = held("ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind[0] == CONTROL]
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(tokens, texts("ggml.merges"), control),
        **SPECIAL_TOKENS,
        chat_template=texts("chat_template")[0],
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=CONFIG["max_position_embeddings"],
    )


def _byte_level(tokens: list[str], merges: list[str], control: list[str]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, right in map(str.split, merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    return tokenizer


def _update_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2) + "\n")
