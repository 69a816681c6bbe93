"""A routed answer by transformers' own attention: the numerical reference of the project.

Unselected blocks are physically absent: the cache holds the selected ones and the tail, nothing
else. Positions go on from the document's last token, whatever was selected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from transformers import DynamicCache

from kri_core.errors import ConfigError
from kri_core.substrate.hf.build import layers_of
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.prefix import Prefix
from kri_core.types import Cartridge


@frozen(eq=False)
class Answer:
    """What the model said, and what it cost."""

    token_ids: tuple[int, ...]  # the stop token included, if one was reached
    logprobs: tuple[float, ...]  # of the chosen tokens
    question_logprobs: Tensor  # float32 [question token, vocab]: of each one's next token
    kv_bytes: int  # of the document's KV that was held
    load_seconds: float  # copying the selected blocks
    prefill_seconds: float  # the question
    decode_seconds: float


def answer(
    model: HfModel,
    cartridge: Cartridge,
    blocks: Sequence[int],
    question: Sequence[int],
    max_new_tokens: int,
    repaired: Prefix | None = None,
) -> Answer:
    """Greedy answer to a question's token ids over the given blocks and the tail.

    `repaired` is what a repair made of the same blocks; None: they are loaded as stored.
    """
    first = _check(model, cartridge, question, max_new_tokens)
    clock = [_now(model)]
    cache = cache_of(load_prefix(model, cartridge, blocks) if repaired is None else repaired)
    kv_bytes = sum(side.nbytes for layer in layers_of(cache) for side in layer)
    clock.append(_now(model))
    asked = model.tokens(question), model.positions(first, len(question))
    logits = model.run(*asked, cache=cache, keep=len(question))[0]
    clock.append(_now(model))
    chosen = list(_decode(model, cache, logits[-1], first + len(question), max_new_tokens))
    clock.append(_now(model))
    seconds = [later - earlier for earlier, later in pairwise(clock)]
    return Answer(
        tuple(token for token, _ in chosen),
        tuple(logprob for _, logprob in chosen),
        logits.float().log_softmax(-1).cpu(),
        kv_bytes,
        *seconds,
    )


def _check(model: HfModel, cartridge: Cartridge, question: Sequence[int], limit: int) -> int:
    """Refuse, before the work, what cannot be answered; give the question's first position."""
    model.check(cartridge)
    if not question:
        raise ConfigError("the question has no tokens; ask something")
    first = cartridge.layout.num_tokens
    model.positions(first, len(question) + max(limit - 1, 0))  # the last token is not read
    return first


def load_prefix(model: HfModel, cartridge: Cartridge, blocks: Sequence[int]) -> Prefix:
    """K and V of the given blocks, in the document's order, and the tail."""
    total = cartridge.layout.num_blocks
    if len(set(blocks)) != len(blocks) or not set(blocks) <= set(range(total)):
        raise ConfigError(
            f"blocks must be distinct numbers below {total}, the cartridge's count; "
            f"got {list(blocks)}"
        )
    return Prefix.of(cartridge, model.dtype, model.device, sorted(blocks))


def cache_of(prefix: Prefix) -> Any:  # noqa: ANN401
    """A prefix as a cache of one row, not copied."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
        cache.update(keys[None], values[None], layer)  # each [1, kv_head, token, head_dim]
    return cache


def stop_ids(model: HfModel) -> frozenset[int]:
    """The token ids that end an answer, as the model's own generation config has them."""
    ids = model.model.generation_config.eos_token_id
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)


def _decode(
    model: HfModel,
    cache: Any,  # noqa: ANN401
    logits: Tensor,
    position: int,
    limit: int,
) -> Iterator[tuple[int, float]]:
    """Greedy tokens with their log-probabilities, from the logits of the first one."""
    ends = stop_ids(model)
    for step in range(limit):
        token = int(logits.argmax())
        yield token, float(logits.float().log_softmax(-1)[token])
        if token in ends or step == limit - 1:
            return
        positions = model.positions(position + step, 1)
        logits = model.run(model.tokens([token]), positions, cache=cache, keep=1)[0, -1]


def _now(model: HfModel) -> float:
    """Seconds, once the device has done what it was given."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter()
