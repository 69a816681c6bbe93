"""From a request to a plan: which cartridge, which stack and prior, which blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from kri_core.artifacts import Overlay
from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.prior import Prior
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.substrate.vllm.asked import Asked, asked_cartridge, shown
from kri_core.substrate.vllm.live_scores import LiveScores
from kri_core.substrate.vllm.orders import Plan
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.priors import Priors
from kri_core.substrate.vllm.question_source import (
    LAYER_ZERO,
    check_source,
    routes_at_once,
)
from kri_core.substrate.vllm.reblocking import (
    reblocked_cartridge,
    reblocked_prior,
    routing_block_size,
)
from kri_core.substrate.vllm.repair_checks import check_repairs
from kri_core.substrate.vllm.rows import Rows
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf
from kri_core.types import Cartridge, Manifest, Query

if TYPE_CHECKING:
    from kri_core.substrate.vllm.layer_zero import LayerZeroProbe

ROUTERS = 64  # stacks kept loaded
STACK_LIMIT = 1000  # characters; 100 kB of them took 12 s to look up, in which nobody is served


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
    _priors: Priors = field(factory=Priors, init=False)
    _live_scores: LiveScores = field(factory=LiveScores, init=False)
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

    def check_offers(self) -> None:
        """Refuse a server whose stack, priors or overlays could never be served."""
        router = self._router(self.settings.stack)
        for entry in self.settings.cartridges:
            cartridge = self.shelf.get(entry.cart_id)
            for path in entry.priors:
                self._priors.read(path).check_belongs(cartridge)
            check_source(router, cartridge, None)
        self.overlays.check(self.shelf.get, self.block_size)

    def check(self, asked: Asked) -> None:
        """Raise what `plan` would, as far as that costs little."""
        cartridge = asked_cartridge(asked, self.shelf, self.text_of)
        if cartridge is None:
            return
        router = self._asked_router(asked)
        if not self.overlays.may_serve(cartridge, router):
            check_repairs(router, cartridge, self.cannot_repair)
        prior = self._asked_prior(asked, cartridge, router)
        check_source(router, cartridge, prior)
        if routes_at_once(router, cartridge, prior):
            size = routing_block_size(cartridge, self.block_size)
            self._route(asked, cartridge, router, size, None)

    def plan(self, asked: Asked) -> Plan | None:
        """None: the request is no cartridge's, or does not want one, and is served dense."""
        cartridge = asked_cartridge(asked, self.shelf, self.text_of)
        if cartridge is None:
            return None
        size = routing_block_size(cartridge, self.block_size)
        router = self._asked_router(asked)
        probe = None if self.probe_of is None else self.probe_of(cartridge)
        manifest = self._route(asked, cartridge, router, size, probe)
        overlay = self._overlay(asked, cartridge, router, manifest)
        repaired = bool(router.stack.repairs) and overlay is None
        rows = Rows(self.block_size, self.dtype, self.settings.share)
        plan = rows.plan(asked, cartridge, manifest, size, repaired)
        if overlay is not None:
            plan = plan.read_from(overlay.header.sha256)
        return evolve(plan, queries=LAYER_ZERO) if probe is not None and probe.used else plan

    def _asked_router(self, asked: Asked) -> Router:
        stack = self.settings.stack if asked.get("stack") is None else asked.get("stack")
        if not isinstance(stack, str):
            raise ConfigError(f"stack is {shown(stack)}; give a text, such as A1R2K13")
        if len(stack) > STACK_LIMIT:
            raise ConfigError(
                f"stack has {len(stack)} characters; write it in at most {STACK_LIMIT}"
            )
        return self._router(stack)

    def _asked_prior(self, asked: Asked, cartridge: Cartridge, router: Router) -> Prior | None:
        named = asked.get("prior") if asked.get("prior") is not None else asked.get("priors")
        return self._priors.asked(self.shelf.entries[cartridge.cart_id], router, named)

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
        prior = prior or self._live_scores.of(router, cartridge)
        if prior is not None:
            prior = reblocked_prior(prior, cartridge, size)
        question = asked.question(cartridge.layout.num_tokens)
        seen = reblocked_cartridge(cartridge, size)
        return router.route(seen, Query(question), prior, probe)

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
