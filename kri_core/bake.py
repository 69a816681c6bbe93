"""Baking: ask a scorer about a cartridge once and keep the answer, with where it came from."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kri_core.errors import ConfigError, PluginError
from kri_core.features import block_features, centre_means
from kri_core.identity import digest
from kri_core.prior import Prior, PriorMeta
from kri_core.probe import Probe
from kri_core.scoring import bake_ranking, bake_scores, bake_summary, may_read_texts, needs_probe
from kri_core.stack import Member
from kri_core.types import BlockScores, Cartridge
from kri_core.watching import watch_prefill

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


def bake(
    cartridge: Cartridge, scorers: Sequence[Member], probe: Probe | None
) -> Iterator[tuple[Member, Prior]]:
    """Each scorer's prior for one cartridge, as it is done.

    A probe is only needed by a scorer that runs the model. Scorers that watch the document's
    prefill share one pass, and whatever else the probe has computed is shared too.
    """
    if cartridge.layout.num_blocks == 0:
        raise ConfigError(
            f"cartridge {cartridge.cart_id!r} has {cartridge.layout.num_tokens} tokens, less than "
            f"one block of {cartridge.layout.block_size}: there is nothing to score"
        )
    unserved = [scorer for scorer in scorers if needs_probe(scorer) and probe is None]
    if unserved:
        raise ConfigError(f"{unserved[0].ref} runs the model to score; give one with --model")
    watched = watch_prefill(scorers, cartridge, probe) if probe is not None else {}
    features = block_features(centre_means(cartridge, probe.rope)) if probe is not None else None
    for scorer in scorers:
        start = time.perf_counter()
        prior = _bake_one(cartridge, scorer, probe, watched, features)
        seconds = time.perf_counter() - start
        logger.info("baked %s with %s in %.1f s", cartridge.cart_id, scorer.ref, seconds)
        yield scorer, prior


def _bake_one(
    cartridge: Cartridge,
    scorer: Member,
    probe: Probe | None,
    watched: Mapping[Member, Tensor],
    features: Tensor | None,
) -> Prior:
    scores = bake_scores(scorer, cartridge, probe, watched)
    ranked = bake_ranking(scorer, cartridge, probe)
    summary = dict(bake_summary(scorer, cartridge, probe))
    if scores is not None and not scores.values.any():
        raise PluginError(
            f"{scorer.plugin.row.label} scored every block 0, so nothing ranks them; no prior is "
            "written. Check that the model gives what the scorer reads"
        )
    if features is not None:
        summary.setdefault("features", features)
    meta = _meta(cartridge, scorer, scores, probe)
    return Prior(scores=scores, blocks_per_budget=ranked, summary=summary, meta=meta)


def _meta(
    cartridge: Cartridge, scorer: Member, scores: BlockScores | None, probe: Probe | None
) -> PriorMeta:
    layout, model = cartridge.layout, cartridge.model
    texts = probe.texts if probe is not None and may_read_texts(scorer) else None
    reads = scorer.plugin.reads_calibration(scorer.params)
    calibration = probe.calibration if probe and reads else None
    return PriorMeta(
        algorithm=scorer.ref.name,
        algorithm_version=scorer.plugin.row.version,
        params=dict(scorer.ref.params),
        model_id=model.model_id,
        model_revision=model.revision,
        model_fingerprint=model.fingerprint,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        score_heads=int(scores.values.shape[1]) if scores else 0,
        num_blocks=layout.num_blocks,
        block_size=layout.block_size,
        doc_len=layout.num_tokens,
        prefix_hash=cartridge.prefix_hash,
        cartridge_sha256=cartridge.sha256,
        probe_sha256=None if texts is None else tuple(digest(text.token_ids) for text in texts),
        calib_sha256=calibration.sha256 if calibration else None,
        dtype="float32",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
