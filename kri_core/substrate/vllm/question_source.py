"""Where a served question's queries come from, refused when it arrives where they cannot."""

from __future__ import annotations

from attrs import evolve

from kri_core.config import PluginRef
from kri_core.errors import ConfigError
from kri_core.params import make_params
from kri_core.prior import Prior
from kri_core.routing import Router
from kri_core.scoring import SCORE_QUERY, needs_probe, scorer_of
from kri_core.stack import Member
from kri_core.types import Cartridge

LAYER_ZERO = "layer0"  # as the scorers of questions name it in their parameter `source`


def check_source(router: Router, cartridge: Cartridge, prior: Prior | None) -> None:
    """Refuse a scorer that reads the question over blocks: none is there when they are chosen."""
    if not router.asks_scores(cartridge.layout):
        return
    scorer, _ = scorer_of(router.stack, router.registry, cartridge, prior)
    if scorer is None or not scorer.answers(SCORE_QUERY):
        return
    source = getattr(scorer.params, "source", LAYER_ZERO)
    if source != LAYER_ZERO:
        raise ConfigError(
            f"{scorer.ref} reads the question over blocks of the document (source={source}), and a "
            "server chooses blocks before any is there; write "
            f"{evolve(router.stack.config, scorer=_better(scorer))}"
        )


def _better(scorer: Member) -> PluginRef:
    """The same scorer by layer 0, or kri-q for one of other layers."""
    params = dict(scorer.ref.params) | {"source": LAYER_ZERO}
    try:
        make_params(scorer.plugin.params_class, params, scorer.ref.name)
    except ConfigError:
        return PluginRef("kri-q", {"source": LAYER_ZERO})
    return evolve(scorer.ref, params=params)


def routes_at_once(router: Router, cartridge: Cartridge, prior: Prior | None) -> bool:
    """Whether routing asks for no queries and reads no KV, or fails before it does."""
    if not router.asks_scores(cartridge.layout):
        return True
    scorer, _ = scorer_of(router.stack, router.registry, cartridge, prior)
    if scorer is None:
        return True
    return needs_probe(scorer) if prior is None else not scorer.answers(SCORE_QUERY)
