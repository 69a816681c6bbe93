"""What a request asks for, and which cartridge that means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from reprlib import Repr
from typing import Any

from attrs import frozen

from kri_core.errors import ConfigError
from kri_core.substrate.vllm.shelf import Shelf
from kri_core.types import Cartridge

PARAMS = {"enabled", "cartridge_id", "stack", "prior", "priors", "question_tokens"}
OF_A_CARTRIDGE = {"stack", "prior", "priors", "question_tokens"}  # these mean nothing without one

_brief = Repr()
_brief.maxstring = _brief.maxother = 80


def shown(value: object) -> str:
    """What a request said, for a line that no request can make long or break in two."""
    return _brief.repr(value)


@frozen
class Asked:
    """What a request says, as the engine has it."""

    request_id: str
    prompt: Sequence[int]
    params: Mapping[str, object] | None = None  # its kv_transfer_params
    cache_salt: str | None = None
    has_adapter: bool = False  # LoRA
    reads_whole_prompt: bool = False  # prompt_logprobs: nothing may come from outside

    @classmethod
    def by(cls, request: Any) -> Asked:  # noqa: ANN401
        """What a vLLM request says that matters for routing."""
        sampling = request.sampling_params
        wants_prompt = sampling is not None and sampling.prompt_logprobs is not None
        return cls(
            request_id=request.request_id,
            prompt=request.prompt_token_ids or (),
            params=request.kv_transfer_params,
            cache_salt=request.cache_salt,
            has_adapter=request.lora_request is not None,
            reads_whole_prompt=bool(request.skip_reading_prefix_cache) or wants_prompt,
        )

    def get(self, name: str) -> object:
        """One of its parameters; None where it is not given."""
        return (self.params or {}).get(name)

    def question(self, num_tokens: int) -> tuple[int, ...]:
        """What follows the cartridge, or as many tokens of it as the request says."""
        follows = tuple(self.prompt[num_tokens:])
        count = self.get("question_tokens")
        if count is None:
            return follows
        if type(count) is not int or not 1 <= count <= len(follows):
            raise ConfigError(
                f"question_tokens is {shown(count)}, and {len(follows)} tokens follow the "
                "cartridge; give how many of these are the question, or leave it out"
            )
        return follows[:count]

    @property
    def wants_routing(self) -> bool:
        """Whether it may be served from a cartridge; refuses parameters that mean nothing."""
        params = self.params or {}
        if unknown := sorted(params.keys() - PARAMS):
            raise ConfigError(
                f"kv_transfer_params has no {shown(unknown[0])}; it knows "
                f"{', '.join(sorted(PARAMS))}"
            )
        enabled = params.get("enabled", True)
        if not isinstance(enabled, bool):
            raise ConfigError(f"enabled is {shown(enabled)}; give true or false")
        return enabled


def asked_cartridge(asked: Asked, shelf: Shelf, text_of: Callable[[int], str]) -> Cartridge | None:
    """The cartridge a request is to be served from, all about it checked; None: it is dense."""
    if not asked.wants_routing:
        return None
    cart_id = asked.get("cartridge_id")
    found = _matched(asked, shelf) if cart_id is None else _named(asked, shelf, cart_id, text_of)
    if found is not None and asked.reads_whole_prompt:
        raise ConfigError(
            "prompt_logprobs needs the whole prompt computed, and a routed request computes "
            'only what follows its cartridge; leave it out, or give "enabled": false'
        )
    if found is not None:
        asked.question(found.layout.num_tokens)
    return found


def _matched(asked: Asked, shelf: Shelf) -> Cartridge | None:
    """By the prompt's own tokens; an adapter's request is never the base model's KV."""
    found = None if asked.has_adapter else shelf.match(asked.prompt)
    named = OF_A_CARTRIDGE & (asked.params or {}).keys()
    if found is None and named:
        raise ConfigError(
            f"{', '.join(sorted(named))} is given, but the prompt starts with no cartridge "
            f"of this server ({', '.join(shelf.entries)}); name one with cartridge_id"
        )
    return found


def _named(asked: Asked, shelf: Shelf, cart_id: object, text_of: Callable[[int], str]) -> Cartridge:
    if not isinstance(cart_id, str) or cart_id not in shelf.entries:
        raise ConfigError(
            f"cartridge_id {shown(cart_id)} is not here; give one of {', '.join(shelf.entries)}"
        )
    if asked.has_adapter:
        raise ConfigError(
            f"cartridge {cart_id!r} is the base model's KV and the request wants an adapter; "
            "leave one of the two out"
        )
    cartridge = shelf.get(cart_id)
    _check_tokens(asked.prompt, cartridge, text_of)
    return cartridge


def _check_tokens(
    prompt: Sequence[int], cartridge: Cartridge, text_of: Callable[[int], str]
) -> None:
    held = cartridge.token_ids
    for place, (found, wanted) in enumerate(zip(prompt, held, strict=False)):
        if found != wanted:
            raise ConfigError(
                f"the prompt is not cartridge {cartridge.cart_id!r} from token {place} on: it "
                f"has {found} ({text_of(found)}), the cartridge {wanted} ({text_of(wanted)}); "
                "send the cartridge's own text, special tokens included"
            )
    if len(prompt) < len(held):
        raise ConfigError(
            f"the prompt ends after {len(prompt)} of the {len(held)} tokens of cartridge "
            f"{cartridge.cart_id!r}; send its whole text and then the question"
        )
