"""What a hook returned, held against what its contract promises; the plugin is named if not."""

from __future__ import annotations

from collections.abc import Iterable

from kri_core.errors import PluginError
from kri_core.loading import Plugin
from kri_core.types import BlockScores, Layout, RepairPlan, Split


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


def check_split(plugin: Plugin, split: object, layout: Layout, budget: int | None) -> Split:
    """Disjoint and ascending, together all blocks, within the budget the stack names."""
    label = plugin.row.label
    if not isinstance(split, Split):
        raise PluginError(f"{label}: must return a Split; got {type(split).__name__}")
    for part in ("anchor", "mid", "recent"):
        blocks = getattr(split, part)
        if any(type(b) is not int for b in blocks) or list(blocks) != sorted(set(blocks)):
            raise PluginError(f"{label}: Split.{part} must be ascending, distinct integers")
    together = sorted((*split.anchor, *split.mid, *split.recent))
    if together != list(range(layout.num_blocks)):
        raise PluginError(
            f"{label}: anchor, mid and recent must together be all {layout.num_blocks} blocks, "
            f"each once; got {len(together)}, {len(set(together))} of them distinct"
        )
    if not 0 <= split.mid_budget <= len(split.mid):
        raise PluginError(
            f"{label}: mid_budget must be 0 to {len(split.mid)}; got {split.mid_budget}"
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
        raise PluginError(f"{label}: a selection must not repeat a block; got {chosen}")
    pinned = {*split.anchor, *split.recent}
    lost, foreign = pinned - set(kept), set(kept) - pinned - set(split.mid)
    if lost or foreign:
        wrong = f"lost the pinned {sorted(lost)}" if lost else f"invented {sorted(foreign)}"
        raise PluginError(f"{label}: a selection is anchor + recent + some of mid; it {wrong}")
    mid = len(kept) - len(pinned)
    if mid > split.mid_budget or (mid < split.mid_budget and not plugin.stops_early):
        raise PluginError(
            f"{label}: must keep exactly {split.mid_budget} mid blocks; kept {mid} "
            "(a selector that stops early sets STOPS_EARLY = True)"
        )
    return tuple(kept)


def check_repair(plugin: Plugin, tokens: object, num_kept_tokens: int) -> RepairPlan:
    """Ascending, distinct indices into the kept tokens."""
    chosen = _integers(tokens, f"{plugin.row.label}: a repair plan")
    within = not chosen or (chosen[0] >= 0 and chosen[-1] < num_kept_tokens)
    if list(chosen) != sorted(set(chosen)) or not within:
        raise PluginError(
            f"{plugin.row.label}: a repair plan is ascending, distinct indices below "
            f"{num_kept_tokens}; got {chosen}"
        )
    return RepairPlan(chosen, num_kept_tokens)


def _integers(values: object, what: str) -> tuple[int, ...]:
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)):
        raise PluginError(f"{what} must be integers; got {type(values).__name__}")
    taken = tuple(values)
    if any(type(value) is not int for value in taken):
        kinds = sorted({type(value).__name__ for value in taken})
        raise PluginError(f"{what} must be plain integers; got {', '.join(kinds)}")
    return taken
