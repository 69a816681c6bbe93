"""Where a request's scores come from: a prior, a scorer asked live, or a question's own scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from kri_core.answers import check_ranking, check_scores, check_summary
from kri_core.config import PluginRef
from kri_core.errors import ArtifactError, ConfigError
from kri_core.prior import Prior, PriorMeta
from kri_core.registry import Registry
from kri_core.stack import Member, Stack
from kri_core.types import BlockScores, Cartridge, Query, RankedBlocks, Split, Summary
from kri_core.watching import WATCH

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.probe import Probe

SCORE, SUMMARISE, SCORE_QUERY = "kri_score_blocks", "kri_summarise_blocks", "kri_score_query"
RANK = "kri_rank_blocks"


def bake_scores(
    scorer: Member,
    cartridge: Cartridge,
    probe: Probe | None,
    watched: Mapping[Member, Tensor] | None = None,
) -> BlockScores | None:
    """Offline scores, asked for or from the prefill it watched; None from one that has none."""
    if watched is not None and scorer in watched:
        return check_scores(scorer.plugin, watched[scorer], cartridge.layout)
    if not scorer.answers(SCORE):
        return None
    values = scorer.call(SCORE, cartridge=cartridge, probe=probe)
    return check_scores(scorer.plugin, values, cartridge.layout)


def bake_ranking(scorer: Member, cartridge: Cartridge, probe: Probe | None) -> RankedBlocks:
    """Block lists by budget; empty from a scorer that picks none."""
    if not scorer.answers(RANK):
        return {}
    ranked = scorer.call(RANK, cartridge=cartridge, probe=probe)
    return check_ranking(scorer.plugin, ranked, cartridge.layout)


def bake_summary(scorer: Member, cartridge: Cartridge, probe: Probe | None) -> Summary:
    """What a query-aware scorer keeps in the prior; empty from one that keeps nothing."""
    if not scorer.answers(SUMMARISE):
        return {}
    summary = scorer.call(SUMMARISE, cartridge=cartridge, probe=probe)
    return check_summary(scorer.plugin, summary, cartridge.layout)


def needs_probe(scorer: Member) -> bool:
    """Whether baking with this scorer needs a model: it watches it, or its hook takes the probe."""
    return may_read_texts(scorer) or scorer.answers(WATCH)


def may_read_texts(scorer: Member) -> bool:
    """Whether its priors may depend on probe texts: only through the probe can it see them."""
    return any(scorer.takes(hook, "probe") for hook in (SCORE, RANK, SUMMARISE))


def scorer_of(
    stack: Stack, registry: Registry, cartridge: Cartridge, prior: Prior | None
) -> tuple[Member | None, PluginRef | None]:
    """The scorer to ask, if any, and the reference that records carry: the stack's or the prior's.

    A prior that belongs to another cartridge, or was baked by another scorer, is refused.
    """
    named = stack.scorer
    ref = named.ref if named else None
    if prior is None:
        return named, ref
    prior.check_belongs(cartridge)
    if prior.meta is None:
        return named, ref
    recorded = _recorded(prior.meta)
    if named is not None and not _is_prior_of(named, recorded):
        raise ArtifactError(
            f"the stack names scorer {named.ref}, the prior was baked by {recorded}; "
            "leave the scorer out, or bake a prior with it"
        )
    if named is None and prior.only_summary:
        named = Member.load(registry, "scorer", recorded)
    return named, ref or recorded


def request_scores(
    stack: Stack,
    scorer: Member | None,
    cartridge: Cartridge,
    split: Split,
    query: Query | None,
    prior: Prior | None,
    probe: Probe | None,
) -> BlockScores:
    """Scores for one request; what is missing is said, never guessed."""
    if scorer is not None and scorer.answers(SCORE_QUERY):
        return _query_scores(scorer, cartridge, split, query, prior, probe)
    if prior is not None and not prior.only_summary:
        return prior.scores_for(split.budget, cartridge.layout.num_blocks)
    if scorer is None and prior is not None:
        raise ConfigError("the prior does not say which scorer made its summary; name the scorer")
    if scorer is None:
        raise nothing_to_score_with(stack)
    _refuse_unbaked(scorer)
    num_blocks = cartridge.layout.num_blocks
    scores = bake_scores(scorer, cartridge, None)
    ranked = bake_ranking(scorer, cartridge, None)
    return Prior(scores=scores, blocks_per_budget=ranked).scores_for(split.budget, num_blocks)


def nothing_to_score_with(stack: Stack) -> ConfigError:
    """A stack without a scorer, of a request that needs scores and has no prior."""
    return ConfigError(
        f"{stack.config} has nothing to score blocks with; name a scorer, such as "
        f"{stack.config.split}(kri-d-kv-sum), or give a prior"
    )


def _query_scores(
    scorer: Member,
    cartridge: Cartridge,
    split: Split,
    query: Query | None,
    prior: Prior | None,
    probe: Probe | None,
) -> BlockScores:
    if query is None:
        raise ConfigError(f"{scorer.ref} scores questions; give one with --query")
    if prior is None:
        _refuse_unbaked(scorer)
        summary = bake_summary(scorer, cartridge, None)
    elif prior.summary:
        summary = prior.summary
    else:
        raise ArtifactError(f"the prior holds no summary for {scorer.ref}; bake one with it")
    values = scorer.call(SCORE_QUERY, summary=summary, query=query, split=split, probe=probe)
    return check_scores(scorer.plugin, values, cartridge.layout)


def _is_prior_of(scorer: Member, recorded: PluginRef) -> bool:
    """Whether a scorer left this record; a summary made without parameters serves them all."""
    asked = evolve(scorer.ref, dist=None)
    if scorer.answers(SCORE_QUERY) and not scorer.takes(SUMMARISE, "params"):
        return asked.name == recorded.name
    return asked == recorded


def _refuse_unbaked(scorer: Member) -> None:
    """A scorer that runs the model over the document is not asked within a request."""
    if needs_probe(scorer):
        raise ConfigError(
            f"{scorer.ref} runs the model over the document; bake a prior first "
            f"(kri-core bake --scorer {scorer.ref}) and give it with --prior"
        )


def _recorded(meta: PriorMeta) -> PluginRef:
    try:
        return PluginRef(meta.algorithm, meta.params)
    except ConfigError as error:
        raise ArtifactError(f"the prior's meta names no scorer: {error}; bake it again") from error
