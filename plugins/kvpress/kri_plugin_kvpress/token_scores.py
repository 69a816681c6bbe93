"""A press's own token scores, read while the model prefills the document; nothing is compressed.

Memory: the whole document is one forward, since a press judges it whole: the hidden states and MLP
activations of all its tokens, the keys and values of one layer, no [token, token] matrix under
transformers' sdpa attention, and what the press itself takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache, PreTrainedModel

from kri_core import Cartridge, ConfigError, EngineError, Layout

if TYPE_CHECKING:
    from kvpress import ScorerPress

SEED = 0  # some presses draw random sketches from torch's global generator


def score(press: ScorerPress, cartridge: Cartridge, model: object, pool: str) -> Tensor:
    """Scores of the document's whole blocks, float32 [layer, kv_head, block]."""
    if not isinstance(model, PreTrainedModel):
        raise EngineError(
            f"kvpress scores transformers models; got a {type(model).__name__}; bake with the hf "
            "substrate"
        )
    _check_has_prefill(cartridge)
    layers: dict[int, Tensor] = {}

    def keep(
        module: Module, hidden: Tensor, keys: Tensor, values: Tensor, *more: object
    ) -> tuple[Tensor, Tensor]:
        scores = press.score(module, hidden, keys, values, *more)
        layers[module.layer_idx] = pooled(scores[0], cartridge.layout, pool).cpu()
        return keys[:, :, :0].clone(), values[:, :, :0].clone()  # this layer has been attended to

    press.compress = keep  # what kvpress's hook asks once a layer's attention is done
    with torch.no_grad(), _seeded(model.device), _as_it_was(model), press(model):
        token_ids = torch.tensor([cartridge.token_ids], device=model.device)
        model.base_model(input_ids=token_ids, past_key_values=DynamicCache(), use_cache=True)
    return torch.stack([layers[layer] for layer in range(cartridge.layout.num_layers)])


def pooled(per_token: Tensor, layout: Layout, how: str) -> Tensor:
    """Mean, max or sum over each block's tokens, float32 [kv_head, block]; the tail is dropped."""
    blocks = (layout.num_blocks, layout.block_size)
    whole = per_token[:, : layout.num_blocks * layout.block_size].float().unflatten(1, blocks)
    by_block: Tensor = {"mean": whole.mean, "max": whole.amax, "sum": whole.sum}[how](-1)
    return by_block


def _check_has_prefill(cartridge: Cartridge) -> None:
    if cartridge.trained or not cartridge.token_ids:
        what = "is trained" if cartridge.trained else "does not know its tokens"
        raise ConfigError(
            f"cartridge {cartridge.cart_id!r} {what}, so there is no prefill for kvpress to score; "
            "use a scorer that reads the cartridge alone, such as knorm of kri-plugin-kmeans"
        )


@contextmanager
def _seeded(device: torch.device) -> Iterator[None]:
    """The same draws every time, and none taken from anyone else."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        yield


@contextmanager
def _as_it_was(model: PreTrainedModel) -> Iterator[None]:
    """Take off the rotary embedding that kvpress leaves on each attention layer."""
    before = {name for name, _ in model.named_modules(remove_duplicate=False)}
    try:
        yield
    finally:
        for name in {name for name, _ in model.named_modules(remove_duplicate=False)} - before:
            parent, _, child = name.rpartition(".")
            delattr(model.get_submodule(parent), child)
