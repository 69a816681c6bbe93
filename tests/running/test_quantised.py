"""The whole document in fewer bits, beside stacks that keep as many bytes."""

import pytest

from kri_core.registry import Registry
from kri_core.running.planning import planned_rows, stacks_of
from kri_core.types import Layout

# SmolLM2-135M over 2 048 tokens: per number 1/2 bit of key scales and 1/4 of value scales
LAYOUT = Layout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, num_tokens=2048)


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (16, "quantised[bits=2,bytes=0.172]"),  # 2.75 of 16 bits; an eighth holds none
        (22, "quantised[bits=2,bytes=0.172]"),  # 22 of 128: exactly as many
        (30, "quantised[bits=3,bytes=0.234]"),
        (38, "quantised[bits=4,bytes=0.297]"),
        (70, "quantised[bits=8,bytes=0.547]"),
    ],
)
def test_a_budget_has_a_row_of_its_bytes_and_every_run_8_and_4_bits(budget, name):
    stacks = stacks_of((f"A0R0K{budget}(knorm)",), (), Registry.discover())

    rows = planned_rows(stacks, LAYOUT, {}, 1, evidence=False)

    assert [(row.name, row.pins, row.role) for row in rows if row.kind == "quantised"] == [
        ("quantised[bits=8,bytes=0.547]", (0, 0, None), "reference"),
        ("quantised[bits=4,bytes=0.297]", (0, 0, None), "reference"),
        (name, (0, 0, budget), "reference"),
    ]


def test_every_block_is_attended_and_fewer_bits_are_farther_from_full(whole_run, records):
    found = records()
    full, *rows = (
        found[name, None]
        for name in (
            "full",
            "quantised[bits=8,bytes=0.656]",
            "quantised[bits=4,bytes=0.406]",
            "quantised[bits=2,bytes=0.281]",
        )
    )

    for row in rows:
        assert [line["kept"] for line in row.items] == [list(range(40))] * 4
        assert [line["kept_fraction"] for line in row.items] == [1.0] * 4
        assert [line["refreshed_tokens"] for line in row.items] == [0] * 4
    divergences = [sum(line["scores"]["kl"] for line in row.items) for row in (full, *rows)]
    assert divergences[0] < divergences[1] < divergences[2] < divergences[3]
