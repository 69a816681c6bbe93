"""A cartridge from a text: one prefill in chunks, by transformers' own cache and attention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from kri_core.artifacts import block_major, seal
from kri_core.errors import ConfigError
from kri_core.substrate.hf.chat import document_ids
from kri_core.substrate.hf.model import HfModel
from kri_core.types import Cartridge

logger = logging.getLogger(__name__)

CHUNK = 512  # tokens prefilled at once; bounds the memory of activations
Report = Callable[[int, int], object]  # (tokens done, tokens in all)


def build_cartridge(
    model: HfModel,
    text: str,
    *,
    cart_id: str,
    block_size: int,
    max_tokens: int | None = None,
    chat_template: bool = False,
    progress: Report | None = None,
) -> Cartridge:
    """Run a text through the model and keep its KV; `max_tokens` keeps the first so many."""
    token_ids = document_ids(model, text, chat_template)[:max_tokens]
    return build_from_tokens(
        model, token_ids, cart_id=cart_id, block_size=block_size, progress=progress
    )


def build_from_tokens(
    model: HfModel,
    token_ids: Sequence[int],
    *,
    cart_id: str,
    block_size: int,
    progress: Report | None = None,
) -> Cartridge:
    """The same for a document that is token ids already; none are added."""
    if not token_ids:
        raise ConfigError("the document has no tokens; give a longer text")
    if len(token_ids) > model.max_positions:
        raise ConfigError(
            f"the document has {len(token_ids)} tokens, but {model.identity.model_id} takes "
            f"{model.max_positions}; cut it with --max-tokens"
        )
    start = time.perf_counter()
    cache = prefill(model, model.tokens(token_ids), model.positions(0, len(token_ids)), progress)
    kv, tail = block_major(layers_of(cache), len(model.anatomy.layers), block_size)
    logger.info("prefilled %d tokens in %.1f s", len(token_ids), time.perf_counter() - start)
    return seal(cart_id, block_size, model.identity, token_ids, kv, tail)


def prefill(
    model: HfModel, token_ids: Tensor, positions: Tensor, progress: Report | None = None
) -> Any:  # noqa: ANN401 - a DynamicCache
    """The cache after the tokens [1, token] at their positions [1, token], which may have gaps."""
    cache = DynamicCache()
    total = token_ids.shape[1]
    for first in range(0, total, CHUNK):
        chunk = slice(first, min(first + CHUNK, total))
        model.run(token_ids[:, chunk], positions[:, chunk], cache=cache, keep=0)
        if progress is not None:
            progress(chunk.stop, total)
    return cache


def layers_of(cache: Any) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ANN401
    """Each layer's keys and values, [kv_head, token, head_dim]."""
    for layer in cache.layers:
        yield layer.keys[0], layer.values[0]
