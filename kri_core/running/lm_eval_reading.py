"""How a request of lm-eval is read: over the blocks that a stack keeps of its document."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define, frozen

from kri_core.errors import KriError
from kri_core.evaluation.tasks.needle import GENERIC
from kri_core.prior import Prior
from kri_core.routing import Router
from kri_core.running.caching import BLOCK_SIZE, Cache
from kri_core.running.lm_eval_splitting import Cut, cut_context
from kri_core.running.selecting import probe_on
from kri_core.substrate.hf import (
    HfModel,
    HfProbe,
    Text,
    answer,
    build_from_tokens,
    load_prefix,
    read_together,
    run_repairs,
)
from kri_core.substrate.hf.prefix import Prefix
from kri_core.types import Cartridge, Query


@frozen(eq=False)
class Chosen:
    """A document's cartridge, and what is attended to of it."""

    cartridge: Cartridge
    kept: tuple[int, ...]
    repaired: Prefix | None = None


@define(eq=False)
class ContextReader:
    """Answers requests through a stack, or with full attention, and counts them."""

    model: HfModel
    router: Router | None  # None: full attention
    cache: Cache
    split_at: str
    dense: int = 0
    kept_fractions: list[float] = Factory(list)  # of all requests, 1.0 of a dense one

    def scores(self, context: str, continuations: Sequence[str]) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding would say it."""
        cut = cut_context(self.model, context, self.split_at)
        chosen = self._chosen(cut, len(continuations))
        prefix = chosen.repaired or load_prefix(self.model, chosen.cartridge, chosen.kept)
        pairs = [cut.scored(continuation) for continuation in continuations]
        texts = [
            Text(prefix, (*question, *behind)[:-1], len(question) - 1) for question, behind in pairs
        ]
        found = []
        rows_of_each = read_together(self.model, chosen.cartridge.layout.num_tokens, texts)
        for rows, (_, behind) in zip(rows_of_each, pairs, strict=True):
            logprob = sum(float(row[token]) for row, token in zip(rows, behind, strict=True))
            found.append((logprob, rows.argmax(-1).tolist() == list(behind)))
        return found

    def text(self, context: str, until: Sequence[str], limit: int) -> str:
        """What greedy decoding says before the first of `until`."""
        cut = cut_context(self.model, context, self.split_at)
        chosen = self._chosen(cut, 1)
        said = answer(
            self.model, chosen.cartridge, chosen.kept, cut.question(), limit, chosen.repaired
        )
        text = str(self.model.tokenizer.decode(said.token_ids, skip_special_tokens=True))
        for stop in filter(None, until):
            text = text.split(stop)[0]
        return text

    def _chosen(self, cut: Cut, requests: int) -> Chosen:
        if not cut.routed:
            self._count_dense(requests)
            made = build_from_tokens(
                self.model, cut.document, cart_id="dense", block_size=BLOCK_SIZE
            )
            return Chosen(made, ())
        cartridge = self.cache.cartridge(self.model, cut.document)
        if self.router is None:
            self._count_dense(requests)
            return Chosen(cartridge, tuple(range(cartridge.layout.num_blocks)))
        probe = probe_on(self.model, cartridge, GENERIC.texts)
        question = cut.question()
        manifest = self.router.route(
            cartridge, Query(question), self._prior(self.router, probe), probe
        )
        self.kept_fractions += [manifest.kept_fraction] * requests
        ((prefix, _),) = run_repairs(self.model, cartridge, self.router, [(manifest, question)])
        return Chosen(cartridge, manifest.kept, prefix)

    def _count_dense(self, requests: int) -> None:
        self.dense += requests
        self.kept_fractions += [1.0] * requests

    def _prior(self, router: Router, probe: HfProbe) -> Prior | None:
        scorer = router.stack.scorer
        if scorer is None:
            return None
        ((_, made),) = self.cache.priors(probe, (scorer,))
        if isinstance(made, KriError):
            raise made
        return made
