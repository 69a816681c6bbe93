"""Where a request's scores come from: a prior, a scorer asked live, or a question's own scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from kri_core.answers import check_scores
from kri_core.config import PluginRef
from kri_core.errors import ArtifactError, ConfigError, PluginError
from kri_core.prior import Prior
from kri_core.registry import Registry
from kri_core.stack import Member, Stack
from kri_core.types import BlockScores, Cartridge, Query, Summary

if TYPE_CHECKING:
    from kri_core.probe import Probe

SCORE, SUMMARISE, SCORE_QUERY = "kri_score_blocks", "kri_summarise_blocks", "kri_score_query"


def bake_scores(
    stack: Stack, scorer: Member, cartridge: Cartridge, probe: Probe | None
) -> BlockScores | None:
    """Offline scores; None from a scorer that only scores questions."""
    if not scorer.answers(SCORE):
        return None
    values = stack.call(scorer, SCORE, cartridge=cartridge, probe=probe)
    return check_scores(scorer.plugin, values, cartridge.layout)


def bake_summary(
    stack: Stack, scorer: Member, cartridge: Cartridge, probe: Probe | None
) -> Summary:
    """What a query-aware scorer keeps in the prior; empty from one that keeps nothing."""
    import torch

    if not scorer.answers(SUMMARISE):
        return {}
    summary = stack.call(scorer, SUMMARISE, cartridge=cartridge, probe=probe)
    if not isinstance(summary, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in summary.items()
    ):
        raise PluginError(f"{scorer.plugin.row.label}: a summary is a dict of names to tensors")
    return summary


def needs_probe(scorer: Member) -> bool:
    """Whether baking with this scorer runs a model: its hook asks for the probe."""
    return any(scorer.takes(hook, "probe") for hook in (SCORE, SUMMARISE))


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
    recorded = PluginRef(prior.meta.algorithm, prior.meta.params)
    if named is not None and evolve(named.ref, dist=None) != recorded:
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
    budget: int,
    query: Query | None,
    prior: Prior | None,
    probe: Probe | None,
) -> BlockScores:
    """Scores for one request; what is missing is said, never guessed."""
    if scorer is not None and scorer.answers(SCORE_QUERY):
        return _query_scores(stack, scorer, cartridge, query, prior, probe)
    if prior is not None:
        return prior.scores_for(budget, cartridge.layout.num_blocks)
    if scorer is None:
        raise ConfigError(
            f"{stack.config} has nothing to score blocks with; name a scorer, such as "
            f"{stack.config.split}(kri-d-kv-sum), or give a prior"
        )
    if needs_probe(scorer) and probe is None:
        raise ConfigError(
            f"{scorer.ref} needs a model to score blocks; bake a prior first "
            f"(kri-core bake --scorer {scorer.ref}) and give it with --prior"
        )
    scores = bake_scores(stack, scorer, cartridge, probe)
    assert scores is not None  # noqa: S101 - a scorer has one of the two forms
    return scores


def _query_scores(
    stack: Stack,
    scorer: Member,
    cartridge: Cartridge,
    query: Query | None,
    prior: Prior | None,
    probe: Probe | None,
) -> BlockScores:
    if prior is None or not prior.summary:
        raise ConfigError(
            f"{scorer.ref} scores questions against a baked summary; bake a prior with it "
            f"(kri-core bake --scorer {scorer.ref}) and give it with --prior"
        )
    if query is None:
        raise ConfigError(f"{scorer.ref} scores questions; give one with --query")
    values = stack.call(scorer, SCORE_QUERY, summary=prior.summary, query=query, probe=probe)
    return check_scores(scorer.plugin, values, cartridge.layout)
