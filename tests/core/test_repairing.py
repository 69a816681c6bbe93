"""What a repair may choose, what is refused before the work, and what a report says."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.repairing import (
    RepairParams,
    RepairReport,
    check_references,
    most_deviating,
    narrowed,
    repair_params,
)
from kri_core.routing import Router


def test_a_repair_may_add_to_the_common_parameters(plugin):
    plugin(
        "repair",
        "io",
        """
        from kri_core import RepairParams

        @frozen
        class Params(RepairParams):
            many: int = 2

        @hookimpl
        def kri_plan_repair(params): return tuple(range(params.many))
        """,
    )
    plugin("repair", "europa", "@hookimpl\ndef kri_plan_repair(): return ()")
    router = Router.from_config(parse("whole+io[many=3,reference=full,check_layer=2]+europa"))
    io, europa = (repair_params(member.params) for member in router.stack.repairs)

    assert (io.reference, io.check_layer, io.many) == ("full", 2, 3)
    assert europa == RepairParams()
    assert str(router.stack.config) == "whole+io[check_layer=2,many=3,reference=full]+europa"


def test_a_report_of_four_tokens():
    report = RepairReport.of(torch.tensor([1.0, 4.0, 0.0, 3.0]), (1, 3))

    assert report == RepairReport((1, 3), 4, 2.0, 4.0, 8.0, 7 / 8)


@pytest.mark.parametrize("tokens", [(), (0, 1)])
def test_where_nothing_deviates_no_share_is_captured(tokens):
    assert RepairReport.of(torch.zeros(2), tokens).share_captured == 0.0
    assert RepairReport.of(torch.zeros(0), ()) == RepairReport((), 0, 0.0, 0.0, 0.0, 0.0)


def test_equal_deviations_go_to_the_earlier_token():
    deviation = torch.ones(300)
    deviation[200] = 2.0

    assert most_deviating(deviation, 4) == (0, 1, 2, 200)
    assert most_deviating(deviation, 0) == ()
    assert most_deviating(deviation[:2], 5) == (0, 1)


def test_a_gradual_repair_ends_at_085_of_the_ratio():
    """130 of 1 000 tokens for a ratio of 0.1, and 85 at the end."""
    assert [narrowed(130, step, 3) for step in range(4)] == [130, 115, 100, 85]
    assert [narrowed(2, step, 2) for step in range(3)] == [2, 2, 2]
    assert narrowed(0, 1, 3) == 0


def test_shares_are_exact():
    assert RepairParams().first_share(0.1) * 1000 == 100
    assert RepairParams(mode="gradual").first_share(0.1) * 1000 == 130


def test_a_negative_check_layer_is_refused():
    with pytest.raises(ValueError, match="'check_layer' must be >= 0: -1"):
        RepairParams(check_layer=-1)


def test_a_stack_without_a_repair_refuses_no_cartridge(make_cartridge):
    check_references(evolve(make_cartridge(3), trained=True, token_ids=()), [])


def test_what_a_reference_needs(make_cartridge):
    cartridge, forced = make_cartridge(3), RepairParams(force_reference=True)
    known = evolve(cartridge, token_ids=tuple(range(cartridge.layout.num_tokens)))
    trained = evolve(known, trained=True)
    check_references(known, [RepairParams()])
    check_references(trained, [forced])

    with pytest.raises(ConfigError, match=r"is trained, and a repair would undo that; leave the"):
        check_references(trained, [forced, RepairParams()])
    with pytest.raises(ConfigError, match="does not know its tokens, so nothing fresh can be"):
        check_references(evolve(known, token_ids=()), [forced])
