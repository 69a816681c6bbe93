"""Which rows a run has: the stacks, and what they are measured against (EVAL 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from kri_core.answers import check_split
from kri_core.cartridge import Layout
from kri_core.config import PluginRef, RoutingConfig
from kri_core.errors import ConfigError
from kri_core.evaluation.equal_bytes import quantised_name
from kri_core.evaluation.rows import Pins, null_pins
from kri_core.grammar import parse
from kri_core.registry import Registry
from kri_core.routing import SELECT, SPLIT, Router
from kri_core.scoring import nothing_to_score_with
from kri_core.stack import Stack
from kri_core.substrate.hf.quantise import bits_within, kept_bytes, quantised_bytes

ALWAYS_BITS = (8, 4)  # of the quantised document, whatever the budgets
OWN_ROLES = ("stack", "placement", "full", "floor", "random")


@frozen
class PlannedRow:
    """One row: how its blocks are chosen, and under which seeds."""

    kind: str  # stack, placement, full, floor, random, oracle, oracle-doc or quantised
    name: str  # canonical stack; of others what a table calls them
    pins: Pins
    seeds: tuple[int, ...] = (0,)
    probe_set: str | None = None
    bits: int = 16  # of a number, where all blocks are quantised

    @property
    def role(self) -> str:
        """As a header has it."""
        return self.kind if self.kind in OWN_ROLES else "reference"


def stacks_of(texts: Sequence[str], budgets: Sequence[int], registry: Registry) -> list[Stack]:
    """The stacks, each under each budget; without budgets as they are written."""
    configs = [
        config if budget is None else with_budget(config, budget)
        for config in map(parse, texts)
        for budget in (budgets or (None,))
    ]
    loaded = [Stack.load(config, registry) for config in configs]
    return list({str(stack.config): stack for stack in loaded}.values())


def check_scorers(stacks: Sequence[Stack], layout: Layout, registry: Registry) -> None:
    """Refuse a stack that has to rank the blocks of such a document and has no scorer."""
    for stack in stacks:
        if stack.scorer is None and Router(stack, registry).asks_scores(layout):
            raise nothing_to_score_with(stack)


def with_budget(config: RoutingConfig, budget: int) -> RoutingConfig:
    """The same stack that keeps `budget` blocks in all, its pins as they are."""
    split = config.split
    if not split.is_tag:
        return evolve(config, budget=budget)
    counts = {key: int(value) for key, value in split.params}
    pinned = counts["anchor"] + counts["recent"]
    if budget < pinned:
        raise ConfigError(
            f"{split} pins {pinned} blocks, more than a budget of {budget}; leave {budget} out of "
            "--k, or pin fewer"
        )
    mid = str(budget - pinned)
    tag = PluginRef(split.name, params=tuple({**dict(split.params), "mid": mid}.items()))
    return evolve(config, split=tag, budget=None)


def pins_of(stack: Stack, layout: Layout) -> Pins:
    """How many blocks a stack pins at each end of such a document, and its budget."""
    budget = stack.config.budget
    answer = stack.split.call(SPLIT, layout=layout, budget=budget)
    split = check_split(stack.split.plugin, answer, layout, budget)
    return len(split.anchor), len(split.recent), split.budget if budget is None else budget


def baselines(stacks: Sequence[Stack], layout: Layout, registry: Registry) -> list[Stack]:
    """Recency and hybrid under every budget of the stacks; the latter 2 to 6, as upstream."""
    budgets = sorted({pins_of(stack, layout)[2] or 0 for stack in stacks})
    return stacks_of(
        [
            text
            for budget in budgets
            for text in (
                f"recency[budget={budget}]",
                f"hybrid[anchor={budget // 4},recent={budget - budget // 4}]",
            )
        ],
        (),
        registry,
    )


def planned_rows(
    stacks: Sequence[Stack],
    layout: Layout,
    probe_sets: dict[str, tuple[str | None, ...]],
    num_seeds: int,
    evidence: bool,
) -> list[PlannedRow]:
    """Every row, each once: full and floor, the stacks, their nulls and their oracles."""
    rows = [PlannedRow("full", "full", (0, 0, None)), PlannedRow("floor", "floor", (0, 0, None))]
    for stack in stacks:
        name, pins = str(stack.config), pins_of(stack, layout)
        sets = probe_sets.get(name, (None,))
        rows += [PlannedRow("stack", name, pins, probe_set=probe_set) for probe_set in sets]
    nulls = dict.fromkeys(null_pins(row.pins) for row in rows if row.kind == "stack")
    for pins in nulls:
        rows += _references(pins, num_seeds, evidence)
    rows += _quantised(sorted({row.pins[2] or 0 for row in rows if row.kind == "stack"}), layout)
    return list(dict.fromkeys(rows))


def placement_rows(rows: Sequence[PlannedRow]) -> list[PlannedRow]:
    """Of each stack a row that keeps what the stack kept of the next document."""
    return [evolve(row, kind="placement") for row in rows if row.kind == "stack"]


def _references(pins: Pins, num_seeds: int, evidence: bool) -> Iterator[PlannedRow]:
    anchor, recent, budget = pins
    tag = f"A{anchor}R{recent}K{(budget or 0) - anchor - recent}"
    yield PlannedRow("random", f"{tag}(random)", pins, tuple(range(num_seeds)))
    if evidence:
        yield PlannedRow("oracle", f"{tag}(oracle)", pins)
        yield PlannedRow("oracle-doc", f"{tag}(oracle-doc)", pins)


def _quantised(budgets: Sequence[int], layout: Layout) -> Iterator[PlannedRow]:
    """The whole document in fewer bits: of each budget what its bytes hold, and two for all."""
    pairs = [(bits, None) for bits in ALWAYS_BITS]
    for bits, budget in [*pairs, *((bits_within(layout, budget), budget) for budget in budgets)]:
        share = quantised_bytes(layout, bits) / kept_bytes(layout, layout.num_blocks)
        yield PlannedRow("quantised", quantised_name(bits, share), (0, 0, budget), bits=bits)


def asks_probe_to_select(stack: Stack) -> bool:
    """Whether the selector runs the model on probe texts within a request."""
    return stack.selector.takes(SELECT, "probe")
