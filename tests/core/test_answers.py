"""Every promise of the hook specs, broken once: the error names the plugin and its package."""

import re

import pytest
import torch

from kri_core import ConfigError, PluginError, Query, Router, parse

MANIFEST_TOKENS = 4


def fails(said, stack, cartridge, **given):
    with pytest.raises(PluginError) as caught:
        Router.from_config(parse(stack)).route(cartridge, **given)
    assert str(caught.value) == said


# Splits


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("None", "must return a Split; got NoneType"),
        ("(0, 1)", "must return a Split; got tuple"),
        ("Split((0,), (1, 2), (3,), None)", "mid_budget must be an integer, 0 to 2; got None"),
        ("Split((0,), (1, 2), (3,), 1.0)", "mid_budget must be an integer, 0 to 2; got 1.0"),
        ("Split((0,), (1, 2), (3,), 3)", "mid_budget must be an integer, 0 to 2; got 3"),
        ("Split((0,), (1, 2), (3,), -1)", "mid_budget must be an integer, 0 to 2; got -1"),
        (
            "Split(None, (0, 1, 2, 3), (), 1)",
            "Split.anchor must be a tuple of integers; got NoneType",
        ),
        (
            "Split((), torch.arange(4), (), 1)",
            "Split.mid must be a tuple of integers; got Tensor",
        ),
        (
            "Split((0,), (1, 2), tuple(torch.tensor([3])), 1)",
            "Split.recent must hold plain integers; got Tensor: int() it",
        ),
        ("Split((0,), (2, 1), (3,), 1)", "Split.mid must be ascending and without repeats"),
        ("Split((0, 0), (1, 2), (3,), 1)", "Split.anchor must be ascending and without repeats"),
        (
            "Split((0, 1), (1, 2), (3,), 1)",
            "anchor, mid and recent must be all 4 blocks, each once; got 5, 4 distinct",
        ),
        (
            "Split((0,), (1,), (3,), 1)",
            "anchor, mid and recent must be all 4 blocks, each once; got 3, 3 distinct",
        ),
        (
            "Split((0,), (1, 2), (4,), 1)",
            "anchor, mid and recent must be all 4 blocks, each once; got 4, 4 distinct",
        ),
        (
            "Split((0,), (1, 2), (3,), 0)",
            "the stack's budget is 3 of 4 blocks; the split gave 2",
        ),
    ],
)
def test_a_split_that_breaks_its_promise(plugin, make_cartridge, answer, said):
    plugin("split", "io", f"@hookimpl\ndef kri_split_blocks(layout): return {answer}")

    fails(f"split 'io' of of-io 1.0: {said}", "io[budget=3](~top-k)", make_cartridge(4))


def test_a_split_of_lists_is_as_good_as_one_of_tuples(plugin, make_cartridge):
    plugin("split", "io", "@hookimpl\ndef kri_split_blocks(): return Split([0], [1, 2], [3], 0)")

    manifest = Router.from_config(parse("io")).route(make_cartridge(4))

    assert (manifest.kept, manifest.split.mid) == ((0, 3), (1, 2))


# Scores


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("None", "BlockScores.values must be a tensor; got NoneType"),
        ("[0.0] * 5", "BlockScores.values must be a tensor; got list"),
        (
            "torch.zeros(5)",
            "BlockScores.values must be [layer, kv_head, block]; got shape (5,)",
        ),
        (
            "torch.zeros(1, 1, 5, dtype=torch.float64)",
            "BlockScores.values must be float32; got torch.float64",
        ),
        (
            "torch.tensor([[[0, 1, float('nan'), float('inf'), 0]]])",
            "BlockScores.values must be finite; 2 of 5 are not",
        ),
        (
            "torch.zeros(1, 1, 5).to_sparse()",
            "BlockScores.values must be a dense tensor; densify it",
        ),
        (
            "torch.zeros(1, 1, 5, device='meta')",
            "BlockScores.values must be a dense tensor; densify it",
        ),
        ("torch.zeros(2, 3, 4)", "scores must be [2 or 1, 3 or 1, 5]; got [2, 3, 4]"),
        ("torch.zeros(3, 1, 5)", "scores must be [2 or 1, 3 or 1, 5]; got [3, 1, 5]"),
        ("torch.zeros(1, 2, 5)", "scores must be [2 or 1, 3 or 1, 5]; got [1, 2, 5]"),
    ],
)
def test_scores_that_break_their_promise(plugin, make_cartridge, answer, said):
    plugin("scorer", "io", f"@hookimpl\ndef kri_score_blocks(cartridge): return {answer}")

    fails(f"scorer 'io' of of-io 1.0: {said}", "A0R0K2(io)", make_cartridge(5))


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_scores_may_leave_layers_and_heads_out(plugin, make_cartridge, shape):
    answer = f"torch.tensor([0.0, 5, 4, 6, 0]).expand{(*shape, 5)}"
    plugin("scorer", "io", f"@hookimpl\ndef kri_score_blocks(): return {answer}")

    assert Router.from_config(parse("A0R0K2(io)")).route(make_cartridge(5)).kept == (1, 3)


# Summaries


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("None", "a summary is a mapping of names to tensors; got NoneType"),
        ("{}", "a summary is a mapping of names to tensors; got an empty one"),
        ("{'mean': [0.0]}", "a summary holds tensors by name; got list under 'mean'"),
        ("{0: torch.zeros(1)}", "a summary holds tensors by name; got Tensor under 0"),
        (
            "{'mean': torch.tensor([float('nan')])}",
            "a summary holds dense, finite tensors; 'mean' is not one",
        ),
        (
            "{'mean': torch.zeros(2).to_sparse()}",
            "a summary holds dense, finite tensors; 'mean' is not one",
        ),
        ("{'features': torch.zeros(4, 2)}", "a summary's features are [5, dim]; got [4, 2]"),
        ("{'features': torch.zeros(5)}", "a summary's features are [5, dim]; got [5]"),
    ],
)
def test_a_summary_that_breaks_its_promise(plugin, make_cartridge, answer, said):
    plugin(
        "scorer",
        "io",
        f"""
        @hookimpl
        def kri_summarise_blocks(cartridge): return {answer}

        @hookimpl
        def kri_score_query(summary): return torch.zeros(1, 1, 5)
        """,
    )
    fails(f"scorer 'io' of of-io 1.0: {said}", "A0R0K2(io)", make_cartridge(5), query=Query((1,)))


# Selections


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("None", "a selection must be a tuple of integers; got NoneType"),
        ("'0159'", "a selection must be a tuple of integers; got str"),
        ("torch.tensor([0, 1, 2, 5])", "a selection must be a tuple of integers; got Tensor"),
        ("(b for b in range(4))", "a selection must be a tuple of integers; got generator"),
        (
            "tuple(torch.arange(4).numpy())",
            "a selection must hold plain integers; got int64: int() it",
        ),
        ("(0, True, 2, 5)", "a selection must hold plain integers; got bool: int() it"),
        ("(0, 1, 2, 5.0)", "a selection must hold plain integers; got float: int() it"),
        ("(0, 1, 1, 5)", "a selection must not repeat a block; got 1 twice"),
        ("(0, 1, 2)", "a selection is anchor + recent + some of mid; it lost the pinned 5"),
        ("(0, 1, 6, 5)", "a selection is anchor + recent + some of mid; it invented 6"),
        ("(0, -1, 1, 5)", "a selection is anchor + recent + some of mid; it invented -1"),
        (
            "(0, 1, 2, 3, 5)",
            "kept 3 mid blocks of 2",
        ),
        (
            "(0, 1, 5)",
            "kept 1 mid blocks of 2; to stop early, set STOPS_EARLY = True",
        ),
    ],
)
def test_a_selection_that_breaks_its_promise(plugin, make_cartridge, answer, said):
    plugin("selector", "io", f"@hookimpl\ndef kri_select_blocks(split): return {answer}")

    fails(f"selector 'io' of of-io 1.0: {said}", "A1R1K2(~io)", make_cartridge(6))


def test_a_selection_in_any_order_is_kept_ascending(plugin, make_cartridge):
    plugin("selector", "io", "@hookimpl\ndef kri_select_blocks(): return [4, 0, 5, 2]")

    assert Router.from_config(parse("A1R1K2(~io)")).route(make_cartridge(6)).kept == (0, 2, 4, 5)


def test_a_selector_that_stops_early_may_keep_fewer_but_not_more(plugin, make_cartridge):
    plugin("selector", "io", "STOPS_EARLY = True\n@hookimpl\ndef kri_select_blocks(): return 0, 5")
    plugin(
        "selector",
        "europa",
        "STOPS_EARLY = True\n@hookimpl\ndef kri_select_blocks(): return 0, 1, 2, 3, 5",
    )

    assert Router.from_config(parse("A1R1K2(~io)")).route(make_cartridge(6)).kept == (0, 5)
    with pytest.raises(PluginError, match=r"europa 1.0: kept 3 mid blocks of 2$"):
        Router.from_config(parse("A1R1K2(~europa)")).route(make_cartridge(6))


# Repair plans


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("None", "a repair plan must be a tuple of integers; got NoneType"),
        ("deviation.topk(1).indices", "a repair plan must be a tuple of integers; got Tensor"),
        ("(0, 4)", "a repair plan is ascending, distinct indices below 4; got 4"),
        ("(-1, 0)", "a repair plan is ascending, distinct indices below 4; got -1"),
        ("(2, 1)", "a repair plan is ascending, distinct indices below 4; got 1"),
        ("(2, 2)", "a repair plan is ascending, distinct indices below 4; got 2"),
    ],
)
def test_a_repair_plan_that_breaks_its_promise(plugin, make_cartridge, answer, said):
    plugin("repair", "io", f"@hookimpl\ndef kri_plan_repair(deviation): return {answer}")
    router = Router.from_config(parse("A1R1K0+io"))
    manifest = router.route(make_cartridge(6))

    wanted = re.escape(f"repair 'io' of of-io 1.0: {said}")
    with pytest.raises(PluginError, match=f"^{wanted}$"):
        router.plan_repair(router.stack.repairs[0], manifest, torch.zeros(MANIFEST_TOKENS))


@pytest.mark.parametrize("answer", [(), (0,), (0, 3), (0, 1, 2, 3)])
def test_a_repair_plan_may_be_anything_from_nothing_to_everything(plugin, make_cartridge, answer):
    plugin("repair", "io", f"@hookimpl\ndef kri_plan_repair(): return {answer}")
    router = Router.from_config(parse("A1R1K0+io"))

    manifest, (repair,) = router.route(make_cartridge(6)), router.stack.repairs
    plan = router.plan_repair(repair, manifest, torch.zeros(MANIFEST_TOKENS))

    assert (plan.tokens, plan.num_kept_tokens) == (answer, MANIFEST_TOKENS)


# Exceptions


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("ZeroDivisionError('by\\n nothing')", "ZeroDivisionError: by nothing"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("AssertionError", "AssertionError"),
        ("GeneratorExit", "GeneratorExit"),
        ("type('Odd', (BaseException,), {})('x')", "Odd: x"),
    ],
)
def test_whatever_a_hook_raises_names_it(plugin, make_cartridge, raised, said):
    plugin("split", "io", f"@hookimpl\ndef kri_split_blocks(layout): raise {raised}")

    fails(f"split 'io' of of-io 1.0 failed in kri_split_blocks: {said}", "io", make_cartridge(4))


def test_what_a_plugin_has_to_say_itself_passes_through(plugin, make_cartridge):
    plugin("split", "io", "@hookimpl\ndef kri_split_blocks(): raise ConfigError('write io[a=1]')")

    with pytest.raises(ConfigError, match=r"^write io\[a=1\]$"):
        Router.from_config(parse("io")).route(make_cartridge(4))


def test_ctrl_c_in_a_hook_is_not_swallowed(plugin, make_cartridge):
    plugin("split", "io", "@hookimpl\ndef kri_split_blocks(): raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        Router.from_config(parse("io")).route(make_cartridge(4))


def test_what_a_hook_prints_is_not_data(plugin, make_cartridge, capsys):
    plugin(
        "scorer",
        "io",
        """
        print("imported")
        @hookimpl
        def kri_score_blocks(cartridge):
            print("asked")
            return torch.arange(4.0)[None, None]
        """,
    )

    assert Router.from_config(parse("A0R0K1(io)")).route(make_cartridge(4)).kept == (3,)
    assert capsys.readouterr() == ("", "imported\nasked\n")
