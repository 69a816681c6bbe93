"""Block lists for code that asks by hash, as it did before there were stacks (DESIGN 8).

The connector does not use it: a stack can say more than pure top-K.
"""

from __future__ import annotations

from pathlib import Path

from attrs import asdict, define, field, frozen

from kri_core.artifacts import read_prior
from kri_core.errors import ArtifactError, ConfigError
from kri_core.identity import digest
from kri_core.prior import Prior


@frozen
class BlockManifest:
    """The blocks of one prefix that a request attends to (ALGORITHMS 10.3)."""

    block_indices: tuple[int, ...]  # ascending
    total_blocks: int
    K: int  # how many there are; fewer than asked of a shorter prefix
    prior_type: str  # informational: nothing branches on it
    resource_id: str
    K_requested: int
    prefix_hash: str
    query_hash: str | None = None

    def __attrs_post_init__(self) -> None:
        blocks = self.block_indices
        if self.total_blocks < 1:
            raise ArtifactError(f"total_blocks must be at least 1; got {self.total_blocks}")
        if list(blocks) != sorted(set(blocks)):
            raise ArtifactError(
                f"block_indices must ascend, none of them twice; got {list(blocks)}"
            )
        if len(blocks) != self.K:
            raise ArtifactError(f"K must be the number of blocks, {len(blocks)}; got {self.K}")
        if blocks and not 0 <= blocks[0] <= blocks[-1] < self.total_blocks:
            raise ArtifactError(
                f"block_indices must be below {self.total_blocks} and not negative; "
                f"got {list(blocks)}"
            )

    @property
    def savings_blocks(self) -> int:
        """Blocks that are not attended to."""
        return self.total_blocks - self.K

    @property
    def savings_fraction(self) -> float:
        """Their share."""
        return self.savings_blocks / self.total_blocks

    @property
    def digest(self) -> str:
        """sha256 of all it says."""
        return digest(asdict(self))


@frozen(eq=False)
class Registered:
    """A prior and how many blocks its prefix has."""

    prior: Prior
    path: Path
    num_blocks: int


@define(eq=False)
class CartridgeKRIProvider:
    """Priors by the prefix they are of, and by the question where one is for that alone."""

    _held: dict[tuple[str, str | None], Registered] = field(factory=dict, init=False)

    def register_prior(
        self, prefix_hash: str, prior_path: Path | str, *, num_blocks: int | None = None
    ) -> None:
        """Read a prior; one whose `meta.query_hash` is set answers that question alone.

        `num_blocks` is needed for bare block lists, which do not tell. `prefix_hash` may be any
        name of the prefix, the cartridge's id too.
        """
        path = Path(prior_path)
        prior = read_prior(path)
        total = prior.num_blocks or num_blocks
        if total is None:
            raise ArtifactError(
                f"{path} holds block lists alone, which do not tell how many blocks there are; "
                "give num_blocks"
            )
        if num_blocks not in (None, total):
            raise ArtifactError(
                f"{path} is a prior of {total} blocks, not of {num_blocks}; register the prior of "
                "this prefix"
            )
        if prior.only_summary:
            raise ArtifactError(
                f"{path} answers only with the question's own queries; name its scorer in a stack, "
                "or register a prior that holds scores"
            )
        query_hash = prior.meta.query_hash if prior.meta else None
        self._held[prefix_hash, query_hash] = Registered(prior, path, total)

    def get_manifest(
        self,
        prefix_hash: str,
        query_hash: str | None,
        K: int,  # noqa: N803 - the contract's name
    ) -> BlockManifest | None:
        """The K best blocks by the prior of this very question, or by the prefix's; None: neither.

        Ties go to the earlier block.
        """
        if type(K) is not int or K < 1:
            raise ConfigError(f"K is {K!r}; give a whole number of blocks, such as 16")
        for key in ((prefix_hash, query_hash), (prefix_hash, None)):
            if found := self._held.get(key):
                return _manifest(found, K, *key)
        return None


def _manifest(
    found: Registered, budget: int, prefix_hash: str, query_hash: str | None
) -> BlockManifest:
    total, meta = found.num_blocks, found.prior.meta
    blocks = list(range(total))
    if budget < total:
        scores = found.prior.scores_for(budget, total).pooled().tolist()
        blocks = sorted(blocks, key=lambda block: (-scores[block], block))[:budget]
    return BlockManifest(
        block_indices=tuple(sorted(blocks)),
        total_blocks=total,
        K=len(blocks),
        prior_type=meta.algorithm if meta else "unknown",
        resource_id=found.path.stem,
        K_requested=budget,
        prefix_hash=prefix_hash,
        query_hash=query_hash,
    )
