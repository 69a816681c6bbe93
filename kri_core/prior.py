"""A prior: what a bake leaves behind, answering in the scorer's place at serve time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import Factory, field, frozen

from kri_core.errors import ArtifactError
from kri_core.types import BlockScores, Cartridge, RankedBlocks, Summary

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class PriorMeta:
    """Where a prior comes from; `algorithm` and `params` name its scorer."""

    algorithm: str
    algorithm_version: str
    params: Mapping[str, str]  # only those that differ from the scorer's defaults
    model_id: str
    model_revision: str | None
    model_fingerprint: str
    num_layers: int
    num_kv_heads: int
    score_heads: int
    num_blocks: int
    block_size: int
    doc_len: int
    prefix_hash: str
    cartridge_sha256: str
    probe_sha256: tuple[str, ...] | None
    dtype: str
    created_at: str
    calib_sha256: str | None = None
    query_hash: str | None = None
    schema_version: int = 1

    def mismatch(self, cartridge: Cartridge) -> str | None:
        """One clause that says in what the cartridge is not this prior's; None if it is."""
        pairs = (
            ("model fingerprint", self.model_fingerprint, cartridge.model.fingerprint),
            ("block_size", self.block_size, cartridge.layout.block_size),
            ("num_blocks", self.num_blocks, cartridge.layout.num_blocks),
            ("cartridge_sha256", self.cartridge_sha256, cartridge.sha256),
        )
        for name, mine, theirs in pairs:
            if mine != theirs:
                return f"{name} {mine} against the cartridge's {theirs}"
        return None


@frozen(eq=False)
class Prior:
    """Scores, block lists and summaries of one cartridge by one scorer; at least one is there."""

    scores: BlockScores | None = None
    blocks_per_budget: RankedBlocks = field(factory=dict)  # kmeans_blocks_perK
    blocks: tuple[int, ...] | None = None  # kmeans_blocks, legacy: best first
    summary: Summary = Factory(dict)
    meta: PriorMeta | None = None

    def __attrs_post_init__(self) -> None:
        if self.only_summary and not self.summary:
            raise ArtifactError("a prior must hold scores, block lists or a summary; got none")
        if self.scores is not None and self.scores.values.numel() == 0:
            shape = list(self.scores.values.shape)
            raise ArtifactError(f"a prior must score at least one block; got scores of {shape}")
        if self.features is not None and self.features.ndim != 2:
            shape = list(self.features.shape)
            raise ArtifactError(f"summary.features must be [block, dim]; got {shape}")
        counts = self._block_counts()
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ArtifactError(f"a prior must be of one number of blocks; got {found}")
        self._check_lists()

    def _check_lists(self) -> None:
        for budget, blocks in self.blocks_per_budget.items():
            if type(budget) is not int or budget < 1:
                raise ArtifactError(
                    f"kmeans_blocks_perK must map whole numbers K to lists; got key {budget!r}"
                )
            check_blocks(f"kmeans_blocks_perK[{budget}]", blocks, self.num_blocks)
            if len(blocks) > budget:
                raise ArtifactError(
                    f"kmeans_blocks_perK[{budget}] must list at most {budget} blocks; "
                    f"got {len(blocks)}"
                )
        if self.blocks is not None:
            check_blocks("kmeans_blocks", self.blocks, self.num_blocks)

    def _block_counts(self) -> dict[str, int]:
        """Number of blocks by each part that knows it."""
        counts = {}
        if self.scores is not None:
            counts["block_affinities"] = self.scores.num_blocks
        if self.features is not None:
            counts["summary.features"] = int(self.features.shape[0])
        if self.meta is not None:
            counts["meta.num_blocks"] = self.meta.num_blocks
        return counts

    @property
    def num_blocks(self) -> int | None:
        """Blocks of the cartridge this is for; None if bare block lists do not tell."""
        return next(iter(self._block_counts().values()), None)

    @property
    def features(self) -> Tensor | None:
        """Unit vectors [block, dim] for the selectors that ask for them."""
        return self.summary.get("features")

    @property
    def only_summary(self) -> bool:
        """No scores and no lists: the scorer must be asked about each question."""
        return self.scores is None and self.blocks is None and not self.blocks_per_budget

    def check_belongs(self, cartridge: Cartridge) -> None:
        """Refuse a cartridge other than the one that was scored; without meta, only sizes tell."""
        total = cartridge.layout.num_blocks
        wrong = self.meta.mismatch(cartridge) if self.meta else None
        if wrong is None and self.num_blocks not in (None, total):
            wrong = f"it is for {self.num_blocks} blocks against the cartridge's {total}"
        listed = [*(self.blocks or ()), *(b for bs in self.blocks_per_budget.values() for b in bs)]
        if wrong is None and listed and max(listed) >= total:
            wrong = f"block {max(listed)} listed, but the cartridge has {total} blocks"
        if wrong is not None:
            raise ArtifactError(
                f"the prior was not baked for cartridge {cartridge.cart_id!r}: {wrong}; "
                "bake one for this cartridge with kri-core bake"
            )

    def scores_for(self, budget: int, num_blocks: int) -> BlockScores:
        """Scores whose order is this prior's answer for a total budget.

        A list for exactly this budget comes first, then scores, then the legacy list. A list
        becomes scores by rank, the unlisted last: a list of `budget` blocks always leaves enough
        of them after any pins are taken out.
        """
        if budget in self.blocks_per_budget:
            return rank_scores(self.blocks_per_budget[budget], num_blocks)
        if self.scores is not None:
            return self.scores
        if self.blocks is not None and len(self.blocks) >= budget:
            return rank_scores(self.blocks[:budget], num_blocks)
        held = sorted(self.blocks_per_budget) or f"one list of {len(self.blocks or ())}"
        raise ArtifactError(
            f"the prior has no entry for K={budget}, only {held}; "
            "choose such a budget or bake again with this one"
        )


def check_blocks(name: str, blocks: tuple[int, ...], num_blocks: int | None) -> None:
    """Refuse a list whose entries are not distinct block ids."""
    if not blocks:
        raise ArtifactError(f"{name} must list at least one block; got none")
    wrong = next((block for block in blocks if type(block) is not int or block < 0), None)
    if wrong is not None:
        raise ArtifactError(f"{name} must hold block ids, whole and not negative; got {wrong!r}")
    if len(set(blocks)) < len(blocks):
        twice = next(block for block, count in Counter(blocks).items() if count > 1)
        raise ArtifactError(f"{name} must not list a block twice; got {twice} more than once")
    if num_blocks is not None and max(blocks, default=-1) >= num_blocks:
        raise ArtifactError(
            f"{name} must list blocks below {num_blocks}, the prior's number; got {max(blocks)}"
        )


def rank_scores(ranked: tuple[int, ...], num_blocks: int) -> BlockScores:
    """Scores [1, 1, block] that put the listed blocks first, in their order."""
    import torch

    values = torch.zeros(1, 1, num_blocks)
    values[0, 0, list(ranked)] = torch.arange(len(ranked), 0, -1, dtype=torch.float32)
    return BlockScores(values)
