"""What a hook returned, held against what its contract promises; the plugin is named if not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from kri_core.errors import PluginError
from kri_core.loading import Plugin
from kri_core.types import BlockScores, Layout, RankedBlocks, RepairPlan, Split, Summary, is_dense


def check_scores(plugin: Plugin, values: object, layout: Layout) -> BlockScores:
    """Finite float32 [layer or 1, kv_head or 1, block] for this very cartridge."""
    try:
        scores = BlockScores(values)  # type: ignore[arg-type]  # it checks that it is a tensor
    except PluginError as error:
        raise PluginError(f"{plugin.row.label}: {error}") from error
    layers, heads, blocks = scores.values.shape
    if (
        layers not in (1, layout.num_layers)
        or heads not in (1, layout.num_kv_heads)
        or blocks != layout.num_blocks
    ):
        raise PluginError(
            f"{plugin.row.label}: scores must be [{layout.num_layers} or 1, "
            f"{layout.num_kv_heads} or 1, {layout.num_blocks}]; got {[layers, heads, blocks]}"
        )
    return scores


def check_ranking(plugin: Plugin, ranked: object, layout: Layout) -> RankedBlocks:
    """For each total budget as many distinct blocks."""
    what = f"{plugin.row.label}: a ranking"
    if not isinstance(ranked, Mapping) or not ranked:
        raise PluginError(f"{what} is a dict of budgets to blocks; got {type(ranked).__name__}")
    checked = {}
    for budget, blocks in ranked.items():
        chosen = _integers(blocks, f"{what} for budget {budget!r}")
        distinct = set(chosen) <= set(range(layout.num_blocks)) and len(set(chosen)) == len(chosen)
        if type(budget) is not int or len(chosen) != budget or not distinct:
            raise PluginError(
                f"{what} for budget {budget!r} must be that many distinct blocks below "
                f"{layout.num_blocks}; got {len(chosen)}, {len(set(chosen))} of them distinct"
            )
        checked[budget] = chosen
    return checked


def check_summary(plugin: Plugin, summary: object, layout: Layout) -> Summary:
    """Names to finite tensors, at least one; `features` has a row for each block."""
    import torch

    what = f"{plugin.row.label}: a summary"
    if not isinstance(summary, Mapping) or not summary:
        came = "an empty one" if isinstance(summary, Mapping) else type(summary).__name__
        raise PluginError(f"{what} is a mapping of names to tensors; got {came}")
    for name, tensor in summary.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            came = type(tensor).__name__
            raise PluginError(f"{what} holds tensors by name; got {came} under {name!r}")
        if not is_dense(tensor) or not bool(tensor.isfinite().all()):
            raise PluginError(f"{what} holds dense, finite tensors; {name!r} is not one")
    shape = list(summary["features"].shape) if "features" in summary else [layout.num_blocks, 0]
    if len(shape) != 2 or shape[0] != layout.num_blocks:
        raise PluginError(f"{what}'s features are [{layout.num_blocks}, dim]; got {shape}")
    return dict(summary)


def check_split(plugin: Plugin, split: object, layout: Layout, budget: int | None) -> Split:
    """Disjoint and ascending, together all blocks, within the budget the stack names."""
    label = plugin.row.label
    if not isinstance(split, Split):
        raise PluginError(f"{label}: must return a Split; got {type(split).__name__}")
    anchor = _ascending(split.anchor, f"{label}: Split.anchor")
    mid = _ascending(split.mid, f"{label}: Split.mid")
    recent = _ascending(split.recent, f"{label}: Split.recent")
    split = Split(anchor, mid, recent, split.mid_budget)
    together = sorted((*split.anchor, *split.mid, *split.recent))
    if together != list(range(layout.num_blocks)):
        raise PluginError(
            f"{label}: anchor, mid and recent must be all {layout.num_blocks} blocks, each once; "
            f"got {len(together)}, {len(set(together))} distinct"
        )
    if type(split.mid_budget) is not int or not 0 <= split.mid_budget <= len(split.mid):
        raise PluginError(
            f"{label}: mid_budget must be an integer, 0 to {len(split.mid)}; "
            f"got {split.mid_budget!r}"
        )
    if budget is not None and split.budget != min(budget, layout.num_blocks):
        raise PluginError(
            f"{label}: the stack's budget is {budget} of {layout.num_blocks} blocks; "
            f"the split gave {split.budget}"
        )
    return split


def check_selection(plugin: Plugin, blocks: object, split: Split) -> tuple[int, ...]:
    """Anchor, recent and mid_budget of mid, ascending; fewer only from one that stops early."""
    label = plugin.row.label
    chosen = _integers(blocks, f"{label}: a selection")
    kept = sorted(set(chosen))
    if len(kept) != len(chosen):
        twice = next(block for block in kept if chosen.count(block) > 1)
        raise PluginError(f"{label}: a selection must not repeat a block; got {twice} twice")
    pinned = {*split.anchor, *split.recent}
    lost, foreign = pinned - set(kept), set(kept) - pinned - set(split.mid)
    if lost or foreign:
        wrong = f"lost the pinned {min(lost)}" if lost else f"invented {min(foreign)}"
        raise PluginError(f"{label}: a selection is anchor + recent + some of mid; it {wrong}")
    mid = len(kept) - len(pinned)
    if mid > split.mid_budget or (mid < split.mid_budget and not plugin.stops_early):
        hint = "; to stop early, set STOPS_EARLY = True" if mid < split.mid_budget else ""
        raise PluginError(f"{label}: kept {mid} mid blocks of {split.mid_budget}{hint}")
    return tuple(kept)


def check_repair(plugin: Plugin, tokens: object, num_kept_tokens: int) -> RepairPlan:
    """Ascending, distinct indices into the kept tokens."""
    chosen = _integers(tokens, f"{plugin.row.label}: a repair plan")
    for before, token in pairwise((-1, *chosen)):
        if not before < token < num_kept_tokens:
            raise PluginError(
                f"{plugin.row.label}: a repair plan is ascending, distinct indices below "
                f"{num_kept_tokens}; got {token}"
            )
    return RepairPlan(chosen, num_kept_tokens)


def _ascending(values: object, what: str) -> tuple[int, ...]:
    taken = _integers(values, what)
    if list(taken) != sorted(set(taken)):
        raise PluginError(f"{what} must be ascending and without repeats")
    return taken


def _integers(values: object, what: str) -> tuple[int, ...]:
    """No tensors and no numpy integers: what crosses a process is plain."""
    if not isinstance(values, (tuple, list)):
        raise PluginError(f"{what} must be a tuple of integers; got {type(values).__name__}")
    wrong = next((value for value in values if type(value) is not int), None)
    if wrong is not None:
        raise PluginError(f"{what} must hold plain integers; got {type(wrong).__name__}: int() it")
    return tuple(values)
