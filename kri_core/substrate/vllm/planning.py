"""From a prompt to a plan: which cartridge, which blocks, which of the engine's rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, evolve, field, frozen

from kri_core.artifacts import Overlay, read_prior
from kri_core.artifacts.opening import file_state
from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.identity import digest
from kri_core.prior import Prior
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.substrate.vllm.orders import Plan, RepairOrder
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.question_source import LAYER_ZERO, check_source
from kri_core.substrate.vllm.reblocking import (
    reblocked_cartridge,
    reblocked_prior,
    routing_block_size,
)
from kri_core.substrate.vllm.repair_checks import check_repairs
from kri_core.substrate.vllm.settings import CartridgeEntry, Settings
from kri_core.substrate.vllm.shelf import Shelf
from kri_core.types import Cartridge, Manifest, Query

if TYPE_CHECKING:
    from kri_core.substrate.vllm.layer_zero import LayerZeroProbe

ROUTERS = 64  # stacks kept loaded
PARAMS = {"enabled", "cartridge_id", "stack", "prior", "priors"}


@frozen
class Asked:
    """What a request says, as the engine has it."""

    request_id: str
    prompt: Sequence[int]
    params: Mapping[str, object] | None = None  # its kv_transfer_params
    cache_salt: str | None = None
    has_adapter: bool = False  # LoRA
    reads_whole_prompt: bool = False  # prompt_logprobs: nothing may come from outside


@define(eq=False)
class Planner:
    """Settles requests one by one; what it cannot settle as asked it raises as a KriError."""

    settings: Settings
    shelf: Shelf
    block_size: int  # the engine's
    dtype: str  # of the engine's KV
    text_of: Callable[[int], str] = repr  # a token's text, for the line on a mismatch
    probe_of: Callable[[Cartridge], LayerZeroProbe] | None = None  # the question's vectors
    cannot_repair: str | None = None  # why this server runs no repairs
    registry: Registry = field(factory=Registry.discover)
    _priors: dict[Path, tuple[object, Prior]] = field(factory=dict, init=False)
    _router: Callable[[str], Router] = field(init=False)
    overlays: Overlays = field(init=False)

    @_router.default
    def _loads_once(self) -> Callable[[str], Router]:
        return lru_cache(ROUTERS)(
            lambda stack: Router.from_config(parse(stack), registry=self.registry)
        )

    @overlays.default
    def _of_the_shelf(self) -> Overlays:
        return Overlays(self.shelf.entries)

    def plan(self, asked: Asked) -> Plan | None:
        """None: the request is no cartridge's, or does not want one, and is served dense."""
        cartridge = self.cartridge_of(asked)
        if cartridge is None:
            return None
        size = routing_block_size(cartridge, self.block_size)
        router = self._asked_router(asked)
        probe = None if self.probe_of is None else self.probe_of(cartridge)
        manifest = self._route(asked, cartridge, router, size, probe)
        overlay = self._overlay(asked, cartridge, router, manifest)
        repaired = bool(router.stack.repairs) and overlay is None
        plan = self._placed(asked, cartridge, manifest, size, repaired)
        if overlay is not None:
            plan = plan.read_from(overlay.header.sha256)
        return evolve(plan, queries=LAYER_ZERO) if probe is not None and probe.used else plan

    def check(self, asked: Asked) -> None:
        """Raise what is wrong with a request that shows before any block is chosen."""
        cartridge = self.cartridge_of(asked)
        if cartridge is not None:
            router = self._asked_router(asked)
            if not self.overlays.may_serve(cartridge, router):
                check_repairs(router, cartridge, self.cannot_repair)
            check_source(router, cartridge, self._asked_prior(asked, cartridge, router))

    def _overlay(
        self, asked: Asked, cartridge: Cartridge, router: Router, manifest: Manifest
    ) -> Overlay | None:
        """What the stack's repairs come to, from a file; without it they must be possible here."""
        if router.stack.repairs and len(asked.prompt) > cartridge.layout.num_tokens:
            overlay = self.overlays.find(cartridge, manifest)
            if overlay is not None:
                return overlay
        check_repairs(router, cartridge, self.cannot_repair)
        return None

    def cartridge_of(self, asked: Asked) -> Cartridge | None:
        """The cartridge a request is to be served from, everything about it checked."""
        params = asked.params or {}
        if unknown := sorted(params.keys() - PARAMS):
            raise ConfigError(
                f"kv_transfer_params has no {', '.join(unknown)}; it knows "
                f"{', '.join(sorted(PARAMS))}"
            )
        if not params.get("enabled", True):
            return None
        cartridge = self._named(asked, params.get("cartridge_id"))
        if cartridge is not None and asked.reads_whole_prompt:
            raise ConfigError(
                "prompt_logprobs needs the whole prompt computed, and a routed request computes "
                'only what follows its cartridge; leave it out, or give "enabled": false'
            )
        return cartridge

    def _named(self, asked: Asked, cart_id: object) -> Cartridge | None:
        if cart_id is None:
            found = None if asked.has_adapter else self.shelf.match(asked.prompt)
            if found is None and (
                named := {"stack", "prior", "priors"} & (asked.params or {}).keys()
            ):
                raise ConfigError(
                    f"{', '.join(sorted(named))} is given, but the prompt starts with no cartridge "
                    f"of this server ({', '.join(self.shelf.entries)}); name one with cartridge_id"
                )
            return found
        if not isinstance(cart_id, str) or cart_id not in self.shelf.entries:
            raise ConfigError(
                f"cartridge_id {cart_id!r} is not here; give one of {', '.join(self.shelf.entries)}"
            )
        if asked.has_adapter:
            raise ConfigError(
                f"cartridge {cart_id!r} is the base model's KV and the request wants an adapter; "
                "leave one of the two out"
            )
        cartridge = self.shelf.get(cart_id)
        self._check_tokens(asked.prompt, cartridge)
        return cartridge

    def _check_tokens(self, prompt: Sequence[int], cartridge: Cartridge) -> None:
        held = cartridge.token_ids
        for place, (found, wanted) in enumerate(zip(prompt, held, strict=False)):
            if found != wanted:
                raise ConfigError(
                    f"the prompt is not cartridge {cartridge.cart_id!r} from token {place} on: it "
                    f"has {found} ({self.text_of(found)}), the cartridge {wanted} "
                    f"({self.text_of(wanted)}); send the cartridge's own text, special tokens "
                    "included"
                )
        if len(prompt) < len(held):
            raise ConfigError(
                f"the prompt ends after {len(prompt)} of the {len(held)} tokens of cartridge "
                f"{cartridge.cart_id!r}; send its whole text and then the question"
            )

    def _asked_router(self, asked: Asked) -> Router:
        stack = (asked.params or {}).get("stack", self.settings.stack)
        if not isinstance(stack, str):
            raise ConfigError(f"stack is {stack!r}; give a text, such as A1R2K13")
        return self._router(stack)

    def _route(
        self,
        asked: Asked,
        cartridge: Cartridge,
        router: Router,
        size: int,
        probe: LayerZeroProbe | None,
    ) -> Manifest:
        prior = self._asked_prior(asked, cartridge, router)
        check_source(router, cartridge, prior)
        if prior is not None:
            prior = reblocked_prior(prior, cartridge, size)
        question = tuple(asked.prompt[cartridge.layout.num_tokens :])
        seen = reblocked_cartridge(cartridge, size)
        return router.route(seen, Query(question), prior, probe)

    def _asked_prior(self, asked: Asked, cartridge: Cartridge, router: Router) -> Prior | None:
        """The prior a request names, or the one its stack's scorer made, or the first."""
        params = asked.params or {}
        entry = self.shelf.entries[cartridge.cart_id]
        named = params.get("prior", params.get("priors"))
        if isinstance(named, Mapping):
            named = named.get(entry.cart_id)
        if named is not None:
            return self._read(_named_prior(entry, named))
        scorer = router.stack.scorer
        if scorer is None or len(entry.priors) < 2:
            return self._read(entry.priors[0]) if entry.priors else None
        held = [self._read(path) for path in entry.priors]
        made = [prior for prior in held if prior.meta and prior.meta.algorithm == scorer.ref.name]
        return made[0] if made else held[0]

    def _read(self, path: Path) -> Prior:
        """As the file is now; held while it stays as it is."""
        try:
            state: object = file_state(path.stat())
        except OSError:
            state = None  # reading it says what is wrong
        held = self._priors.get(path)
        if held is None or held[0] != state:
            held = (state, read_prior(path))
            self._priors[path] = held
        return held[1]

    def _placed(
        self, asked: Asked, cartridge: Cartridge, manifest: Manifest, size: int, private: bool
    ) -> Plan:
        """At least the prompt's last token is computed, in a row that is there."""
        num_tokens = min(cartridge.layout.num_tokens, len(asked.prompt) - 1)
        kept = set(manifest.kept)
        if num_tokens < manifest.total_blocks * size:
            kept.add(num_tokens // size)
        per_block, row_size = size // self.block_size, self.block_size
        rows = [row for block in kept for row in range(block * per_block, (block + 1) * per_block)]
        rows += range(manifest.total_blocks * per_block, -(-num_tokens // row_size))
        present = tuple(sorted(row for row in rows if row * row_size < num_tokens))
        attended = evolve(manifest, kept=tuple(sorted(kept)))
        shareable = self.settings.share and not private
        secret = content_hash(cartridge, self.dtype, row_size, asked.cache_salt)
        return Plan(
            request_id=asked.request_id,
            cart_id=cartridge.cart_id,
            stack=manifest.stack,
            kept=attended.kept,
            total_blocks=manifest.total_blocks,
            routing_block_size=size,
            block_size=row_size,
            num_tokens=num_tokens,
            rows=present,
            shared=tuple(
                (row, hashlib.sha256(secret + row.to_bytes(8, "big")).digest())
                for row in present
                if shareable and (row + 1) * row_size <= num_tokens
            ),
            sha256=cartridge.sha256,
            repair=self._repair(cartridge, attended, present, num_tokens) if private else None,
        )

    def _repair(
        self, cartridge: Cartridge, manifest: Manifest, rows: Sequence[int], num_tokens: int
    ) -> RepairOrder:
        size = self.block_size
        tokens = (range(row * size, min((row + 1) * size, num_tokens)) for row in rows)
        held = cartridge.token_ids
        return RepairOrder(manifest, tuple(held[token] for some in tokens for token in some))


def _named_prior(entry: CartridgeEntry, name: object) -> Path:
    """Only a prior the server was given: a request cannot make it read another file."""
    for path in entry.priors:
        if name in (path.name, path.stem):
            return path
    held = ", ".join(path.stem for path in entry.priors) or "none"
    raise ConfigError(
        f"prior {name!r} is not one of cartridge {entry.cart_id!r}, which has {held}; name one of "
        "these, or leave it out"
    )


def content_hash(cartridge: Cartridge, dtype: str, row_size: int, cache_salt: str | None) -> bytes:
    """What two requests must agree in to share a row of the engine's cache."""
    parts = (
        cartridge.sha256,
        cartridge.prefix_hash,
        cartridge.model.fingerprint,
        dtype,
        row_size,
        cache_salt,
    )
    return digest("kri-core cartridge rows", *parts).encode()
