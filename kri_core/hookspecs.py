"""The questions a plugin answers. Each docstring is the contract between plugin and core.

A hook implementation takes the arguments it needs, by these names, and gives none a default. It
must not change anything it is given. `params` is an instance of the plugin module's own `Params`
class, or None if it has none. Tensors follow docs/contract.md.
"""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.probe import PrefillWatcher, Probe
    from kri_core.types import (
        BlockScores,
        Cartridge,
        Layout,
        Manifest,
        Query,
        RankedBlocks,
        Split,
        Summary,
    )

PROJECT = "kri_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Scorer:
    """Slot `scorer`, group `kri_core.scorers`: which blocks matter.

    A scorer has one of four forms: `kri_score_blocks`; `kri_watch_prefill`, for one that reads the
    document's own attention; `kri_rank_blocks`, for one that picks blocks without scoring them; or
    `kri_summarise_blocks` with `kri_score_query`, for one that scores questions. The first three
    may add `kri_summarise_blocks` to keep features. One that can do two is two plugins under two
    names. One that watches, or takes `probe` over the document, needs a model and a bake.
    One whose module sets `READS_CALIBRATION` to True, or to a function of `params` that says so,
    has the calibration recorded in its priors.
    """

    @hookspec(firstresult=True)
    def kri_score_blocks(self, cartridge: Cartridge, probe: Probe, params: object) -> Tensor:
        """Score every block of a cartridge; called once per bake.

        Once per request, too, if it takes no `probe` and there is no prior.

        cartridge: the document's KV; probe: the model that made it; params: see the module.
        Returns float32 [layer or 1, kv_head or 1, block], finite, higher = keep. Promised: the
        same inputs give the same scores, bit for bit.
        """

    @hookspec(firstresult=True)
    def kri_watch_prefill(self, cartridge: Cartridge, params: object) -> PrefillWatcher:
        """Watch the document being prefilled; called once per bake, before the pass.

        All scorers of a bake that watch share one pass, so a second one costs little. Returns a
        `PrefillWatcher`: it sees every chunk and is then asked for its scores.
        """

    @hookspec(firstresult=True)
    def kri_rank_blocks(self, cartridge: Cartridge, probe: Probe, params: object) -> RankedBlocks:
        """Pick the best blocks for each budget, best first; called once per bake.

        cartridge, probe: as for `kri_score_blocks`. Returns a dict of total budgets, 1 to the
        number of blocks, to as many distinct blocks. The blocks for one budget need not be among
        those for a larger one.
        """

    @hookspec(firstresult=True)
    def kri_summarise_blocks(self, cartridge: Cartridge, probe: Probe, params: object) -> Summary:
        """Reduce a cartridge to the named tensors `kri_score_query` needs; called once per bake.

        Once per request, too, if it takes no `probe` and there is no prior.

        Returns a mapping of names to tensors; they are kept in the prior as `summary.<name>`.
        Without `params` the summary is the same for all of them, so one prior serves them all.
        """

    @hookspec(firstresult=True)
    def kri_score_query(
        self, summary: Summary, query: Query, split: Split, probe: Probe | None, params: object
    ) -> Tensor:
        """Score every block for one question; called once per request, before any block is loaded.

        summary: what `kri_summarise_blocks` gave; query: the question's tokens; split: the pins,
        which the question may be run over; probe: runs it, None where no model is at hand. Returns
        as `kri_score_blocks`.
        """


class Selector:
    """Slot `selector`, group `kri_core.selectors`: which mid blocks fill the budget.

    One that takes neither `scores` nor `features` needs no scorer and no prior. One that takes
    `probe` runs the model within the request. One whose module sets `STOPS_EARLY = True` may keep
    fewer than `mid_budget`.
    """

    @hookspec(firstresult=True)
    def kri_select_blocks(
        self,
        scores: BlockScores,
        split: Split,
        features: Tensor | None,
        prefix_hash: str,
        probe: Probe | None,
        params: object,
    ) -> tuple[int, ...]:
        """Choose which blocks a request sees; called once per request.

        scores: [layer, kv_head, block]; split: pins, candidates and budget; features: unit vectors
        [block, dim] from the prior, or None; prefix_hash: the cartridge's content address, to
        seed anything random; probe: runs probe texts over some blocks, None where no model is at
        hand. Not called when `mid_budget` is 0 or covers mid. Returns anchor + recent + exactly
        `mid_budget` blocks of mid (at most, with STOPS_EARLY), without duplicates, in any order.
        Promised: ties go to the earlier block.
        """


class Splitter:
    """Slot `split`, group `kri_core.splits`: which blocks are pinned."""

    @hookspec(firstresult=True)
    def kri_split_blocks(self, layout: Layout, budget: int | None, params: object) -> Split:
        """Divide a cartridge's blocks; called once per request.

        layout: the cartridge's; budget: the stack's total, None if it names none. Returns anchor,
        mid and recent: disjoint, ascending, together all blocks; and `mid_budget`, at most
        len(mid). With mid_budget 0 the stack needs neither scorer nor prior.
        """


class Repairer:
    """Slot `repair`, group `kri_core.repairs`: which kept tokens are computed afresh.

    Fresh KV comes from a reference. A module whose `Params` extends `kri_core.RepairParams` lets a
    stack choose it, and what is measured; any other is given that class's defaults. Several repairs
    of a stack go one after the other, each on the KV that the one before left.
    """

    @hookspec(firstresult=True)
    def kri_plan_repair(
        self, manifest: Manifest, deviation: Tensor, params: object
    ) -> tuple[int, ...]:
        """Choose the tokens to refresh; called once per request, after load, before decode.

        manifest: what was kept; deviation: float32 [token], squared distance of stored to fresh
        KV on the check layer, one per kept token: of the kept blocks, then of the tail. Returns
        ascending, distinct indices into the kept tokens; none is allowed.
        """


SLOTS: dict[str, type] = {
    "scorer": Scorer,
    "selector": Selector,
    "split": Splitter,
    "repair": Repairer,
}
TASK = "task"  # no slot of a stack and no hooks: see kri_core.evaluation.tasks
GROUPS = {slot: f"kri_core.{slot}s" for slot in (*SLOTS, TASK)}
