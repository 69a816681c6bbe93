"""Cartridges, priors and captures kept by what they are of: a second run costs only the answers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers
from attrs import asdict, frozen

from kri_core.artifacts import read_prior, verify_cartridge, write_cartridge, write_prior
from kri_core.artifacts.tensors import bytes_of, dtype_name
from kri_core.bake import bake
from kri_core.errors import ArtifactError, KriError
from kri_core.identity import digest, prefix_hash
from kri_core.prior import Prior
from kri_core.scoring import may_read_texts
from kri_core.stack import Member
from kri_core.substrate.hf import HfModel, HfProbe, build_from_tokens
from kri_core.substrate.hf.captures import Captures
from kri_core.types import Cartridge
from kri_core.versions import core_version, named_version

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16  # EVAL 1
NAME_DIGITS = 12
NOT_COMPARED = ("created_at", "model_id", "probe_sha256")  # when, where, and what the row says


@frozen(eq=False)
class Cache:
    """A folder of cartridges, priors and captures; several processes may share it."""

    folder: Path

    def cartridge(self, model: HfModel, token_ids: Sequence[int]) -> Cartridge:
        """A document's cartridge, built if it is not there or damaged."""
        dtype = str(model.dtype).removeprefix("torch.")
        name = prefix_hash(model.identity, BLOCK_SIZE, dtype, token_ids)
        path = self.folder / "cartridges" / f"{name}.safetensors"
        if path.exists():
            try:
                held = verify_cartridge(path)
                if held.prefix_hash == name:
                    return held
                logger.warning("%s is built again: it is another document's", path)
            except ArtifactError as error:
                logger.warning("%s is built again: %s", path, error)
        made = build_from_tokens(
            model, token_ids, cart_id=name[:NAME_DIGITS], block_size=BLOCK_SIZE
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_cartridge(made, path)
        return verify_cartridge(path)

    def captures(self, model: HfModel) -> Captures:
        """What forwards of questions gave, by this code."""
        return Captures(self.folder / "captures" / digest(_computed_by(model))[:NAME_DIGITS])

    def priors(
        self, probe: HfProbe, scorers: Sequence[Member]
    ) -> Iterator[tuple[Member, Prior | KriError]]:
        """Each scorer's prior for the probe's cartridge and texts, or why it has none.

        What is missing is baked together; if one fails, the others are baked each for itself.
        """
        missing = []
        for scorer in scorers:
            if (held := self.prior(probe, scorer)) is not None:
                yield scorer, held
            else:
                missing.append(scorer)
        if not missing:
            return
        try:
            for scorer, made in bake(probe.cartridge, tuple(missing), probe):
                self._keep(probe, scorer, made)
                missing.remove(scorer)
                yield scorer, made
        except KriError as error:
            if len(missing) == 1:
                yield missing[0], error
                return
            for scorer in missing:
                yield from self.priors(probe, (scorer,))

    def prior(self, probe: HfProbe, scorer: Member) -> Prior | None:
        """The prior that is kept, if it is there and whole."""
        path = self.prior_path(probe, scorer)
        if not path.exists():
            return None
        try:
            held = read_prior(path)
        except ArtifactError as error:
            logger.warning("%s is baked again: %s", path, error)
            return None
        meta, wanted = held.meta, (scorer.ref.name, probe.cartridge.sha256)
        if meta is None or (meta.algorithm, meta.cartridge_sha256) != wanted:
            logger.warning("%s is baked again: it is another's", path)
            return None
        return held

    def _keep(self, probe: HfProbe, scorer: Member, made: Prior) -> None:
        path = self.prior_path(probe, scorer)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_prior(made, path)

    def prior_path(self, probe: HfProbe, scorer: Member) -> Path:
        """Where that prior is kept, or would be."""
        calibration = None
        if scorer.plugin.reads_calibration(scorer.params) and probe.calibration:
            calibration = probe.calibration.sha256
        name = digest(
            probe.cartridge.sha256,
            str(scorer.ref),
            named_version(scorer.plugin.row),
            [text.token_ids for text in probe.texts] if may_read_texts(scorer) else None,
            dtype_name(probe.cartridge.kv),
            calibration,
            _computed_by(probe.model),
        )
        return self.folder / "priors" / f"{name}.safetensors"


def _computed_by(model: HfModel) -> list[str]:
    """What turns the same inputs into other bits."""
    return [core_version(), torch.__version__, transformers.__version__, model.device.type]


def prior_digest(prior: Prior) -> str:
    """What a prior says, whenever and wherever it was baked, and by whatever probe texts."""
    meta = {} if prior.meta is None else asdict(prior.meta)
    tensors = dict(prior.summary) | ({"scores": prior.scores.values} if prior.scores else {})
    held = {
        name: [list(tensor.shape), hashlib.sha256(bytes_of(tensor.contiguous())).hexdigest()]
        for name, tensor in tensors.items()
    }
    lists = [list(pair) for pair in sorted(prior.blocks_per_budget.items())]
    said = {name: value for name, value in meta.items() if name not in NOT_COMPARED}
    return digest(said, lists, prior.blocks, held)
