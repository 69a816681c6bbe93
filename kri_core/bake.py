"""Baking: ask a scorer about a cartridge once and keep the answer, with where it came from."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from kri_core.errors import ConfigError, PluginError
from kri_core.identity import digest
from kri_core.prior import Prior, PriorMeta
from kri_core.probe import Probe
from kri_core.scoring import bake_scores, bake_summary, needs_probe
from kri_core.stack import Member
from kri_core.types import BlockScores, Cartridge

logger = logging.getLogger(__name__)


def bake(cartridge: Cartridge, scorer: Member, probe: Probe | None) -> Prior:
    """One scorer's prior for one cartridge.

    A probe is only needed by a scorer whose hook takes one. Several scorers given the same probe
    share what it has already computed.
    """
    if cartridge.layout.num_blocks == 0:
        raise ConfigError(
            f"cartridge {cartridge.cart_id!r} has {cartridge.layout.num_tokens} tokens, less than "
            f"one block of {cartridge.layout.block_size}: there is nothing to score"
        )
    if needs_probe(scorer) and probe is None:
        raise ConfigError(f"{scorer.ref} runs the model to score blocks; give one with --model")
    start = time.perf_counter()
    scores = bake_scores(scorer, cartridge, probe)
    summary = bake_summary(scorer, cartridge, probe)
    if scores is not None and not scores.values.any():
        raise PluginError(
            f"{scorer.plugin.row.label} scored every block 0, so nothing ranks them; no prior is "
            "written. Check that the model gives what the scorer reads"
        )
    logger.info(
        "baked %s with %s in %.1f s", cartridge.cart_id, scorer.ref, time.perf_counter() - start
    )
    return Prior(scores=scores, summary=summary, meta=_meta(cartridge, scorer, scores, probe))


def _meta(
    cartridge: Cartridge, scorer: Member, scores: BlockScores | None, probe: Probe | None
) -> PriorMeta:
    layout, model = cartridge.layout, cartridge.model
    texts = probe.texts if probe is not None and needs_probe(scorer) else None
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
        dtype="float32",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
