"""Models that routing is exact for; every other kind is refused by name.

Leaving a block out is exact where every layer attends to everything before it, through keys that
carry their own position. What the config does not say, one forward of one token at two positions
does: its keys and queries must differ by RoPE and by nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from kri_core.errors import EngineError
from kri_core.substrate.hf.interface import AttentionCall, attending
from kri_core.substrate.hf.rope import Rotary, rotary_embedding

POSITIONS = (0, 7)
# What attention layers pass along that does not change what attention is.
HARMLESS = {
    "cache_position", "is_causal", "output_attentions", "output_hidden_states", "position_ids",
    "return_dict", "use_cache",
}  # fmt: skip


@frozen(eq=False)
class Anatomy:
    """The parts of a model that the substrate touches, and their sizes."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[nn.Module, ...]  # the decoder layers, in order
    rotary: Rotary


def refuse(model_name: str, why: str) -> EngineError:
    """The one line every refusal is."""
    return EngineError(
        f"{model_name} cannot be routed exactly: {why}; use a decoder-only model with RoPE and "
        "full attention in every layer, such as Llama, Qwen2 or Qwen3"
    )


def check_config(config: Any) -> None:  # noqa: ANN401 - transformers is untyped
    """Refuse what a config alone gives away, before any weights are read."""
    name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise refuse(name, "it is an encoder-decoder")
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        raise refuse(name, f"it has layers of {', '.join(sorted(kinds - {'full_attention'}))}")
    window = getattr(text, "sliding_window", None)
    if not kinds and window is not None and getattr(text, "use_sliding_window", True):
        raise refuse(name, f"it attends through a sliding window of {window} tokens")
    if getattr(text, "kv_lora_rank", None) is not None:
        raise refuse(name, "it has multi-head latent attention (MLA)")
    if getattr(text, "alibi", False):
        raise refuse(name, "it has ALiBi instead of RoPE")
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if scaling.get("rope_type", scaling.get("type")) == "longrope":
        raise refuse(name, "its RoPE (longrope) changes with the length of the text")


def examine(model: Any) -> Anatomy:  # noqa: ANN401
    """Find a model's parts by running one token at two positions; refuse what is not exact."""
    name = type(model).__name__
    check_config(model.config)
    embedding = rotary_embedding(model)
    if embedding is None:
        raise refuse(name, "it has no rotary position embedding (RoPE)")
    calls = _calls(model, name)
    if not calls:
        raise refuse(name, "its attention does not go through transformers' AttentionInterface")
    rotary = Rotary(embedding, calls[0].module)
    for call in calls:
        _check_rope(name, call, rotary)
    if len({(call.query.shape, call.key.shape) for call in calls}) > 1:
        raise refuse(name, "its layers differ in their numbers of heads")
    layers = _layers(model, [call.module for call in calls])
    if layers is None:
        raise refuse(name, f"not each of its layers attends ({len(calls)} do)")
    _, num_kv_heads, _, head_dim = calls[0].key.shape
    return Anatomy(calls[0].query.shape[1], num_kv_heads, head_dim, layers, rotary)


def _calls(model: Any, name: str) -> list[AttentionCall]:  # noqa: ANN401
    """What every attention layer is asked for one token, alone at each position."""
    calls: list[AttentionCall] = []

    def attend(call: AttentionCall) -> Tensor:
        _check_call(name, call)
        calls.append(call)
        groups = call.query.shape[1] // call.key.shape[1]
        return call.value.repeat_interleave(groups, 1)  # a lone token attends to itself

    token = torch.full((len(POSITIONS), 1), 1, device=model.device)
    positions = torch.tensor(POSITIONS, device=model.device)[:, None]
    with torch.no_grad(), attending(model, attend):
        model.base_model(input_ids=token, position_ids=positions, use_cache=False)
    return sorted(calls, key=lambda call: call.layer)


def _check_call(name: str, call: AttentionCall) -> None:
    """Refuse an attention that is more than softmax(q·k)·v over everything before."""
    if call.key.shape != call.value.shape:
        raise refuse(name, "its keys and values differ in shape (MLA)")
    for option, value in call.options.items():
        if value is not None and (option not in HARMLESS or (option == "is_causal" and not value)):
            shown = type(value).__name__ if isinstance(value, Tensor) else value
            raise refuse(name, f"its attention asks for {option}={shown}")


def _check_rope(name: str, call: AttentionCall, rotary: Rotary) -> None:
    """Positions must turn the queries, and RoPE must be all that they do."""
    positions = torch.tensor(POSITIONS, device=call.query.device)[:, None]
    plain = rotary.off(call.query.float(), positions, call.query.dtype)
    tolerance = 1e-3 if call.query.dtype in (torch.float32, torch.float64) else 5e-2
    scale = tolerance * plain.norm()
    if (call.query[0] - call.query[1]).float().norm() <= scale:
        raise refuse(name, f"its layer {call.layer} has no RoPE")
    if (plain[0] - plain[1]).norm() > scale:
        raise refuse(name, f"its layer {call.layer} uses positions in another way than RoPE alone")


def _layers(model: nn.Module, attentions: list[nn.Module]) -> tuple[nn.Module, ...] | None:
    """The list of modules of which each holds one of the attention layers, in order."""
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == len(attentions):
            pairs = zip(part, attentions, strict=True)
            if all(attention in set(layer.modules()) for layer, attention in pairs):
                return tuple(part)
    return None
