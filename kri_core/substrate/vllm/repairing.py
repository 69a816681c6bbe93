"""The repairs of one request in the worker, after its rows are loaded (ALGORITHMS 9.5).

The blending is the hf substrate's own (`Refresh`); the fresh KV comes from one forward of the
loaded model per repair. All n kept tokens pass all layers, for a kernel's queries are neighbours:
n token-forwards. Above the check layer only the planned tokens' KV is written, before the layer
attends, so that the others keep the cartridge's and what they compute is never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import torch
from attrs import Factory, define, evolve, field, frozen
from torch import Tensor
from vllm.logger import init_logger

from kri_core.errors import EngineError
from kri_core.grammar import parse
from kri_core.registry import Registry
from kri_core.repairing import RepairReport, repair_params
from kri_core.routing import Router
from kri_core.stack import Member
from kri_core.substrate.hf.cutting import NothingLeftError
from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.hf.refreshing import Pair, Refresh, tokens_at
from kri_core.substrate.vllm.capture import Written
from kri_core.substrate.vllm.loading import slots_of, staged, write_rows
from kri_core.substrate.vllm.nested import NestedForward, OverRanks
from kri_core.substrate.vllm.orders import LoadOrder, Repaired, RepairOrder
from kri_core.types import Cartridge

logger = init_logger("vllm.kri_core.repairing")

ROUTERS = 64  # stacks kept loaded


@define(eq=False)
class Repairer:
    """Repairs requests one by one; whatever it raises is that request's end."""

    forward: NestedForward
    layers: Mapping[str, Any]  # attention layers of the engine, in the model's order
    over_ranks: OverRanks
    registry: Registry = field(factory=Registry.discover)
    _router: Callable[[str], Router] = field(init=False)

    @_router.default
    def _loads_once(self) -> Callable[[str], Router]:
        return lru_cache(ROUTERS)(self._load)

    def _load(self, stack: str) -> Router:
        """Without its scorer, which a prior may have stood in for and which is not asked here."""
        return Router.from_config(evolve(parse(stack), scorer=None), registry=self.registry)

    def on_all_ranks(self, here: bool) -> bool:
        """Whether it holds on every rank: a repair goes on on all of them, or one would wait."""
        return self.over_ranks.all(here, self.forward.runner.device)

    def repair(self, order: LoadOrder, repair: RepairOrder, cartridge: Cartridge) -> Repaired:
        """The stack's repairs in the order written, each on what the one before left."""
        router, prefix = self._router(repair.manifest.stack), self._stored(order, repair, cartridge)
        reports = list[RepairReport]()
        for member in router.stack.repairs:
            plan = partial(router.plan_repair, member, repair.manifest)
            sums = partial(self.over_ranks.summed, num_kv_heads=cartridge.layout.num_kv_heads)
            refresh = RankRefresh(prefix, repair_params(member.params), plan, over_ranks=sums)
            self._run(order, repair, refresh)
            prefix = evolve(prefix, keys=tuple(refresh.keys), values=tuple(refresh.values))
            reports.append(self._report(order, member, refresh))
        return _repaired(order.request_id, reports)

    def _stored(self, order: LoadOrder, repair: RepairOrder, cartridge: Cartridge) -> Prefix:
        """What was loaded, of this rank's heads, in the cache's dtype."""
        layer = next(iter(self.layers.values()))
        kv = staged(cartridge, order.rows, self.over_ranks.rank)
        held = kv.to(layer.kv_cache.device, layer.kv_cache_torch_dtype)
        sides = held.transpose(2, 3).unbind(1)  # each [layer, kv_head, token, head_dim]
        keys, values = (tuple(side) for side in sides)
        manifest, layout = repair.manifest, cartridge.layout
        return Prefix(keys, values, manifest.kept, manifest.total_blocks, layout.block_size)

    def _run(self, order: LoadOrder, repair: RepairOrder, refresh: Refresh) -> None:
        watcher = Rewriting(refresh, {name: place for place, name in enumerate(self.layers)})
        with suppress(NothingLeftError):
            self.forward.run(order.rows, repair.token_ids, watcher)
            watcher.check_all()
        check_finite(refresh, self.on_all_ranks)
        slots = slots_of(order.rows, self.forward.block_size)
        for number, layer in enumerate(self.layers.values()):
            if number > refresh.params.check_layer:
                break
            keys, values = (side[number].transpose(0, 1) for side in (refresh.keys, refresh.values))
            write_rows(layer, keys, values, slots.to(keys.device))

    def _report(self, order: LoadOrder, member: Member, refresh: Refresh) -> RepairReport:
        report = RepairReport.of(refresh.deviation[0], tuple(refresh.rows[1].tolist()))
        if not report.refreshed:
            logger.warning(
                "request %s: %s refreshed none of %d tokens",
                order.request_id, member.ref, report.num_kept_tokens,
            )  # fmt: skip
        return report


@frozen(eq=False)
class RankRefresh(Refresh):
    """Measures over all ranks, so that every one of them writes the same tokens."""

    over_ranks: Callable[[Tensor], Tensor] = field(kw_only=True)

    def _distance(self, layer: int, fresh: Pair) -> Tensor:
        return self.over_ranks(super()._distance(layer, fresh))


@frozen(eq=False)
class Rewriting:
    """A `Watcher`: fresh KV of all tokens up to the check layer, above it of the planned ones."""

    refresh: Refresh
    number: Mapping[str, int]  # of each attention layer
    seen: list[int] = Factory(list)

    def __call__(self, layer: Any, key: Tensor, value: Tensor, slots: Tensor) -> Written:  # noqa: ANN401
        """What the layer writes, [token, kv_head, head_dim] twice and [token]."""
        refresh, number = self.refresh, self.number[layer.layer_name]
        rows = refresh.rows[-1]
        if not len(rows):
            raise NothingLeftError
        refresh.take(number, tokens_at((key.transpose(0, 1), value.transpose(0, 1)), rows))
        self.seen.append(number)
        if number <= refresh.params.check_layer:
            return key, value, slots
        return key[rows], value[rows], slots[rows]

    def check_all(self) -> None:
        """Every layer wrote once, and through us."""
        if self.seen != list(range(len(self.number))):
            raise EngineError(
                f"a repair saw layers {self.seen} write their KV where all {len(self.number)} "
                "should, one after the other; leave the repair out for this model"
            )


def check_finite(refresh: Refresh, on_all_ranks: Callable[[bool], bool]) -> None:
    """NaN that is attended would pass for an answer."""
    held = [*refresh.deviation, *refresh.keys, *refresh.values]
    if not on_all_ranks(all(bool(torch.isfinite(one).all()) for one in held)):
        raise EngineError(
            "the repair computed KV that is not finite; leave the repair out, or serve the model "
            "in a wider dtype"
        )


def _repaired(request_id: str, reports: list[RepairReport]) -> Repaired:
    """Tokens of all repairs, each counted once; deviations are the first one's: the cartridge's."""
    first = reports[0]
    return Repaired(
        request_id,
        tokens=len(set[int]().union(*(report.refreshed for report in reports))),
        kept_tokens=first.num_kept_tokens,
        deviation_mean=first.deviation_mean,
        deviation_max=first.deviation_max,
        share_captured=first.share_captured,
    )
