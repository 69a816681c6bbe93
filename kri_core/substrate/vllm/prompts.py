"""The prompts of an OpenAI request as token ids, by the server's own /tokenize route."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kri_core.substrate.vllm.asgi import Inside

TOKEN_IDS = range(1 << 31)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# What /tokenize takes of a request, and what changes a prompt in ways it cannot repeat.
TEXT = ("model", "add_special_tokens")
MESSAGES = (
    *("model", "messages", "add_generation_prompt", "continue_final_message"),
    *("add_special_tokens", "chat_template", "chat_template_kwargs"),
    *("media_io_kwargs", "mm_processor_kwargs"),
)
UNREPEATABLE = (
    *("truncate_prompt_tokens", "prompt_embeds", "suffix"),
    *("tools", "documents", "reasoning_effort", "response_format"),
)


async def token_ids(
    path: str, body: Mapping[str, Any], app: Inside
) -> Sequence[Sequence[int]] | None:
    """One list for each prompt of the request; None where only the engine can tell."""
    if any(body.get(name) for name in UNREPEATABLE):
        return None
    if path == CHAT:
        tokens = await _tokenized(app, {name: body[name] for name in MESSAGES if name in body})
        return None if tokens is None else [tokens]
    found: list[list[int]] = []
    for prompt in _several(body.get("prompt")):
        tokens = prompt if _are_tokens(prompt) else None
        if isinstance(prompt, str):
            of_it = {name: body[name] for name in TEXT if name in body}
            tokens = await _tokenized(app, of_it | {"prompt": prompt})
        if tokens is None:
            return None
        found.append(tokens)
    return found


def _several(prompt: object) -> Sequence[Any]:
    """A text, its tokens, or a list of either."""
    return prompt if isinstance(prompt, list) and not _are_tokens(prompt) else [prompt]


def _are_tokens(prompt: object) -> bool:
    """Numbers that can be no token are the engine's to refuse."""
    return isinstance(prompt, list) and all(
        type(token) is int and token in TOKEN_IDS for token in prompt
    )


async def _tokenized(app: Inside, asked: Mapping[str, object]) -> list[int] | None:
    """None of a request that the route refuses, as then the server will."""
    answer = await app.post("/tokenize", asked)
    if answer.status != 200:
        return None
    tokens: list[int] = json.loads(answer.body)["tokens"]
    return tokens
