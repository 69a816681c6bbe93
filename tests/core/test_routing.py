"""The router: which blocks come out of a stack, a cartridge and perhaps a prior, by hand."""

import re

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kri_core.builtin import top_k
from kri_core.catalogue import DISTRIBUTION_OF
from kri_core.config import PluginRef, RoutingConfig
from kri_core.errors import ArtifactError, ConfigError, PluginError
from kri_core.grammar import parse
from kri_core.prior import Prior, PriorMeta
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.types import BlockScores, Query, Split

RAMP = """
@hookimpl
def kri_score_blocks(cartridge):
    return torch.arange(cartridge.layout.num_blocks).float()[None, None]
"""
LAST = """
@hookimpl
def kri_split_blocks(layout, budget):
    return Split.pin(layout.num_blocks, anchor=0, recent=budget)
"""
HEAVY = "@hookimpl\ndef kri_score_blocks(cartridge, probe): return probe"


def router(stack):
    return Router.from_config(parse(stack) if isinstance(stack, str) else stack)


def scores_of(*values):
    return BlockScores(torch.tensor(values, dtype=torch.float32)[None, None])


def prior_of(cartridge, algorithm="heavy", params=(), **parts):
    """A prior as a bake of this cartridge leaves it; scores descend unless parts are given."""
    layout = cartridge.layout
    meta = PriorMeta(
        algorithm=algorithm,
        algorithm_version="1.0",
        params=dict(params),
        model_id=cartridge.model.model_id,
        model_revision=None,
        model_fingerprint=cartridge.model.fingerprint,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        score_heads=1,
        num_blocks=layout.num_blocks,
        block_size=layout.block_size,
        doc_len=layout.num_tokens,
        prefix_hash=cartridge.prefix_hash,
        cartridge_sha256=cartridge.sha256,
        probe_sha256=None,
        dtype="float32",
        created_at=cartridge.created_at,
    )
    return Prior(meta=meta, **(parts or {"scores": scores_of(*range(layout.num_blocks, 0, -1))}))


# Splits alone


def test_policy_stack_needs_no_scores(make_cartridge):
    """Recency alone routes without scorer or prior (STYLE's example; recency is in plugins/)."""
    router = Router.from_config(RoutingConfig(budget=4, split=PluginRef("recency")))

    assert router.route(make_cartridge(128), query=None).kept == (124, 125, 126, 127)


def test_a_manifest_says_what_was_kept_of_what_and_why(plugin, make_cartridge):
    plugin("split", "last", LAST)
    manifest = router("last[budget=4]").route(make_cartridge(128))

    assert manifest.kept == (124, 125, 126, 127)
    assert manifest.scores is None
    assert manifest.split == Split((), tuple(range(124)), (124, 125, 126, 127), 0)
    assert manifest.stack == "last[budget=4]"
    assert (manifest.cart_id, manifest.prefix_hash) == ("doc", "hash of doc")
    assert (manifest.total_blocks, manifest.kept_fraction) == (128, 4 / 128)


def test_a_split_without_mid_budget_never_asks_its_scorer(plugin, make_cartridge):
    plugin("scorer", "heavy", "@hookimpl\ndef kri_score_blocks(): raise AssertionError")

    assert router("A1R2K0(heavy)").route(make_cartridge(9)).kept == (0, 7, 8)


@pytest.mark.parametrize("num_blocks", [0, 1, 3, 15, 16])
def test_a_budget_that_covers_every_block_keeps_all_and_needs_no_scorer(num_blocks, make_cartridge):
    """DESIGN 5: N ≤ budget selects every block."""
    manifest = router("A1R2K13").route(make_cartridge(num_blocks))

    assert manifest.kept == tuple(range(num_blocks))
    assert (manifest.skipped, manifest.kept_fraction) == ((), 1.0)


def test_one_block_more_than_the_budget_needs_a_scorer(make_cartridge):
    said = "A1R2K13 has nothing to score blocks with; name a scorer, such as A1R2K13(kri-d-kv-sum)"
    with pytest.raises(ConfigError, match=re.escape(said + ", or give a prior")):
        router("A1R2K13").route(make_cartridge(17))


def test_whole_keeps_everything(make_cartridge):
    assert router("whole").route(make_cartridge(5)).kept == (0, 1, 2, 3, 4)


def test_k_zero_keeps_nothing_but_pins(make_cartridge):
    """CASES 18, K = 0."""
    assert router("A0R0K0").route(make_cartridge(5)).kept == ()


# Scores and their order


def test_the_best_of_mid_fill_the_budget(plugin, make_cartridge):
    plugin("scorer", "ramp", RAMP)
    manifest = router("A1R2K3(ramp)").route(make_cartridge(10))

    assert manifest.kept == (0, 5, 6, 7, 8, 9)
    assert manifest.scores == tuple(range(10))
    assert manifest.skipped == (1, 2, 3, 4)
    assert manifest.block_indices == manifest.kept


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ("[1, 1, 1, 1, 1]", (0, 1)),
        ("[-0.0, 0.0, 0.0, -0.0, 0.0]", (0, 1)),
        ("[0.0, -0.0, 1, 0.0, 1]", (2, 4)),
        ("[0, 2, 1, 2, 2]", (1, 3)),
    ],
)
def test_ties_go_to_the_earlier_block(plugin, make_cartridge, values, kept):
    """CASES 18."""
    plugin(
        "scorer", "io", f"@hookimpl\ndef kri_score_blocks(): return torch.tensor([[{values}]])*1."
    )

    assert router("A0R0K2(io)").route(make_cartridge(5)).kept == kept


@pytest.mark.parametrize("budget", [0, 1, 4, 5, 6, 10**9 - 1])
def test_a_budget_up_to_and_over_the_number_of_blocks(plugin, make_cartridge, budget):
    """CASES 18, K = 0, K = N, K > N: as many as there are."""
    plugin("scorer", "ramp", RAMP)
    manifest = router(f"A0R0K{budget}(ramp)").route(make_cartridge(5))

    assert manifest.kept == tuple(range(max(0, 5 - budget), 5))


@given(st.integers(0, 40), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.data())
def test_the_number_kept_is_the_smaller_of_budget_and_blocks(blocks, anchor, recent, mid, data):
    """ALGORITHMS 8.4, with any scores: pins are kept and nothing is counted twice."""
    values = data.draw(
        st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=blocks, max_size=blocks)
    )
    split = Split.pin(blocks, anchor=anchor, recent=recent, mid_budget=mid)
    kept = top_k.kri_select_blocks(scores_of(*values), split, top_k.Params())

    assert len(set(kept)) == len(kept) == min(blocks, anchor + recent + mid)
    assert {*range(min(anchor, blocks)), *range(max(0, blocks - recent), blocks)} <= set(kept)


# Selectors


def test_a_selector_that_takes_no_scores_needs_no_scorer(plugin, make_cartridge):
    plugin(
        "selector",
        "first",
        """
        @hookimpl
        def kri_select_blocks(split):
            return split.anchor + split.mid[: split.mid_budget] + split.recent
        """,
    )
    manifest = router("A1R1K2(~first)").route(make_cartridge(9))

    assert manifest.kept == (0, 1, 2, 8)
    assert (manifest.scores, manifest.stack) == (None, "A1R1K2(~first)")


def test_a_selector_is_given_what_its_spec_says(plugin, make_cartridge):
    plugin(
        "selector",
        "nosy",
        """
        @frozen
        class Params:
            seed: int = 7

        @hookimpl
        def kri_select_blocks(scores, split, features, prefix_hash, probe, params):
            assert probe == "a probe"
            assert scores.values.shape == (1, 1, 3)
            assert features is None or features.tolist() == [[1, 0], [0, 1], [1, 0]]
            assert (split.mid_budget, prefix_hash, params.seed) == (1, "hash of doc", 8)
            return (0 if features is None else 2,)
        """,
    )
    cartridge = make_cartridge(3)
    features = torch.tensor([[1.0, 0], [0, 1], [1, 0]])
    scores = scores_of(1, 2, 3)
    nosy = router("A0R0K1(~nosy[seed=8])")

    bare = prior_of(cartridge, scores=scores)
    assert nosy.route(cartridge, prior=bare, probe="a probe").kept == (0,)
    told = prior_of(cartridge, scores=scores, summary={"features": features})
    assert nosy.route(cartridge, prior=told, probe="a probe").kept == (2,)


# Priors


def test_a_prior_answers_in_the_scorer_s_place(plugin, make_cartridge):
    plugin("scorer", "heavy", "@hookimpl\ndef kri_score_blocks(): raise AssertionError")
    cartridge = make_cartridge(9)
    manifest = router("A1R0K2(heavy)").route(cartridge, prior=prior_of(cartridge))

    assert manifest.kept == (0, 1, 2)
    assert manifest.stack == "A1R0K2(heavy)"


def test_a_stack_without_a_scorer_takes_it_from_the_prior_s_record(make_cartridge):
    """DESIGN 5: results carry the scorer; it need not be installed to use what it left."""
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "Far_Away", {"depth": "2"})
    manifest = router("A1R0K2").route(cartridge, prior=prior)

    assert manifest.stack == "A1R0K2(far-away[depth=2])"
    assert parse(manifest.stack).scorer == PluginRef("far-away", {"depth": 2})


def test_defaults_are_left_out_before_scorer_and_prior_are_compared(plugin, make_cartridge):
    plugin(
        "scorer",
        "heavy",
        "@frozen\nclass Params:\n    depth: int = 2\n    wide: bool = False\n" + HEAVY,
    )
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "heavy", {"wide": "true"})
    manifest = router("A1R0K2(of-heavy:HEAVY[depth=02,wide=True])").route(cartridge, prior=prior)

    assert manifest.stack == "A1R0K2(of-heavy:heavy[wide=true])"


def test_a_prior_of_another_scorer_is_refused(plugin, make_cartridge):
    plugin("scorer", "ramp", RAMP)
    cartridge = make_cartridge(9)
    said = (
        "the stack names scorer ramp, the prior was baked by heavy[depth=2]; leave the scorer out, "
        "or bake a prior with it"
    )
    with pytest.raises(ArtifactError, match=re.escape(said)):
        router("A1R0K2(ramp)").route(cartridge, prior=prior_of(cartridge, params={"depth": "2"}))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"cartridge_sha256": "x"}, "cartridge_sha256 x against the cartridge's sha of doc"),
        ({"block_size": 4}, "block_size 4 against the cartridge's 1"),
        ({"model_fingerprint": "x"}, "model fingerprint x against the cartridge's "),
    ],
)
@pytest.mark.parametrize("stack", ["A1R0K2", "A9R0K0"])
def test_a_prior_of_another_cartridge_is_refused_even_where_no_score_is_asked(
    make_cartridge, stack, other, said
):
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge)
    prior = evolve(prior, meta=evolve(prior.meta, **other))

    wanted = re.escape(f"the prior was not baked for cartridge 'doc': {said}")
    with pytest.raises(ArtifactError, match=wanted):
        router(stack).route(cartridge, prior=prior)


@pytest.mark.parametrize("num_blocks", [8, 10])
def test_a_prior_of_another_number_of_blocks_is_refused(make_cartridge, num_blocks):
    """CASES 17: one block too many or too few; with meta and without."""
    said = f"it is for {num_blocks} blocks against the cartridge's 9"
    with pytest.raises(ArtifactError, match=said):
        router("A1R0K2").route(make_cartridge(9), prior=Prior(scores=scores_of(*[1] * num_blocks)))
    said = f"num_blocks {num_blocks} against the cartridge's 9"
    with pytest.raises(ArtifactError, match=said):
        router("A1R0K2").route(make_cartridge(9), prior=prior_of(make_cartridge(num_blocks)))


def test_a_record_that_is_no_scorer_s_name_is_refused(make_cartridge):
    cartridge = make_cartridge(9)
    said = "the prior's meta names no scorer: 'a b' is not a plugin name; use letters, digits, '-' "
    with pytest.raises(ArtifactError, match=re.escape(said)):
        router("A1R0K2").route(cartridge, prior=prior_of(cartridge, "a b"))


def test_the_three_forms_of_a_prior_with_one_content_keep_the_same_blocks(make_cartridge):
    """ALGORITHMS 10.7."""
    cartridge = make_cartridge(8)
    best_first = (5, 7, 2, 0, 6, 1, 3, 4)
    values = [0.0] * 8
    for rank, block in enumerate(best_first):
        values[block] = -float(rank)
    forms = [
        {"scores": scores_of(*values)},
        {"blocks_per_budget": {4: best_first[:4]}},
        {"blocks": best_first},
    ]
    manifests = [
        evolve(router("A1R1K2").route(cartridge, prior=prior_of(cartridge, **form)), scores=None)
        for form in forms
    ]

    assert manifests[0].kept == (0, 2, 5, 7)
    assert manifests[0] == manifests[1] == manifests[2]


def test_a_list_for_this_budget_comes_before_scores_and_scores_before_the_legacy_list(
    make_cartridge,
):
    """ALGORITHMS 10.2."""
    cartridge = make_cartridge(4)
    by_budget = {"blocks_per_budget": {1: (1,)}}
    scores = {"scores": scores_of(0, 0, 9, 0)}
    legacy = {"blocks": (3, 0, 1, 2)}

    def kept(**parts):
        return router("A0R0K1").route(cartridge, prior=prior_of(cartridge, **parts)).kept

    assert kept(**by_budget, **scores, **legacy) == (1,)
    assert kept(**scores, **legacy) == (2,)
    assert kept(**legacy) == (3,)


def test_a_budget_no_list_was_baked_for_is_refused(make_cartridge):
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, blocks_per_budget={2: (1, 2), 8: (1, 2)})

    with pytest.raises(
        ArtifactError, match=re.escape("no entry for K=3, only [2, 8]; choose such")
    ):
        router("A1R0K2").route(cartridge, prior=prior)
    with pytest.raises(ArtifactError, match="no entry for K=3, only one list of 2"):
        router("A1R0K2").route(cartridge, prior=prior_of(cartridge, blocks=(1, 2)))


def test_a_prior_without_a_record_binds_to_nothing(plugin, make_cartridge):
    """DESIGN 6: what exists in the world; the stack's own scorer is what the record says."""
    plugin("scorer", "heavy", HEAVY)
    cartridge = make_cartridge(4)
    prior = Prior(scores=scores_of(0, 5, 0, 0))

    assert router("A0R0K1").route(cartridge, prior=prior).stack == "A0R0K1"
    manifest = router("A0R0K1(heavy)").route(cartridge, prior=prior)
    assert (manifest.kept, manifest.stack) == ((1,), "A0R0K1(heavy)")


# Scorers asked live


def test_a_scorer_that_runs_the_model_is_not_asked_without_a_prior(plugin, make_cartridge):
    plugin("scorer", "heavy", HEAVY)
    said = (
        "heavy runs the model over the document; bake a prior first "
        "(kri-core bake --scorer heavy) and give it with --prior"
    )
    for probe in (None, object()):
        with pytest.raises(ConfigError, match=re.escape(said)):
            router("A1R0K2(heavy)").route(make_cartridge(9), probe=probe)


ASKS = """
@hookimpl
def kri_summarise_blocks(cartridge):
    return {"mean": torch.arange(cartridge.layout.num_blocks)}

@hookimpl
def kri_score_query(summary, query, probe):
    assert probe in (None, "the model")
    return -(summary["mean"] - query.token_ids[0]).abs().float()[None, None]
"""


def test_a_query_aware_scorer_scores_the_question_against_its_summary(plugin, make_cartridge):
    plugin("scorer", "asks", ASKS)
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "asks", summary={"mean": torch.arange(9)})
    asks = router("A0R0K3(asks)")

    assert asks.route(cartridge, Query((4,)), prior).kept == (3, 4, 5)
    assert asks.route(cartridge, Query((7,)), prior, probe="the model").kept == (6, 7, 8)


def test_one_that_needs_no_model_summarises_live(plugin, make_cartridge):
    plugin("scorer", "asks", ASKS)

    assert router("A0R0K3(asks)").route(make_cartridge(9), Query((4,))).kept == (3, 4, 5)


def test_a_prior_of_nothing_but_a_summary_brings_its_scorer(plugin, make_cartridge):
    plugin("scorer", "asks", ASKS)
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "asks", summary={"mean": torch.arange(9)})
    manifest = router("A0R0K3").route(cartridge, Query((4,)), prior)

    assert (manifest.kept, manifest.stack) == ((3, 4, 5), "A0R0K3(asks)")


def test_the_scorer_of_a_summary_must_be_installed(make_cartridge, monkeypatch):
    monkeypatch.setitem(DISTRIBUTION_OF, "asks", "kri-plugin-asks")
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "asks", summary={"mean": torch.arange(9)})

    with pytest.raises(PluginError, match="'asks' is not installed; pip install kri-plugin-asks"):
        router("A0R0K3").route(cartridge, Query((4,)), prior)


def test_a_summary_nobody_signed_needs_its_scorer_named(plugin, make_cartridge):
    plugin("scorer", "asks", ASKS)
    cartridge, prior = make_cartridge(9), Prior(summary={"mean": torch.arange(9)})

    assert router("A0R0K3(asks)").route(cartridge, Query((4,)), prior).kept == (3, 4, 5)
    said = "the prior does not say which scorer made its summary; name the scorer"
    with pytest.raises(ConfigError, match=said):
        router("A0R0K3").route(cartridge, Query((4,)), prior)


PICKY = "@frozen\nclass Params:\n    source: str = 'pinned'\n" + ASKS


@pytest.mark.parametrize("recorded", [{}, {"source": "layer0"}])
def test_a_summary_made_without_parameters_serves_them_all(plugin, make_cartridge, recorded):
    """They say how a question is read; the stack's count, and the record carries them."""
    plugin("scorer", "asks", PICKY)
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "asks", recorded, summary={"mean": torch.arange(9)})
    manifest = router("A0R0K3(asks[source=full])").route(cartridge, Query((4,)), prior)

    assert manifest.stack == "A0R0K3(asks[source=full])"
    left_out = router("A0R0K3").route(cartridge, Query((4,)), prior).stack
    assert parse(left_out).scorer == PluginRef("asks", recorded)


def test_a_summary_made_with_parameters_serves_only_those(plugin, make_cartridge):
    plugin("scorer", "asks", PICKY.replace("blocks(cartridge)", "blocks(cartridge, params)"))
    cartridge = make_cartridge(9)
    prior = prior_of(cartridge, "asks", summary={"mean": torch.arange(9)})

    with pytest.raises(ArtifactError, match=r"names scorer asks\[source=full\], the prior was"):
        router("A0R0K3(asks[source=full])").route(cartridge, Query((4,)), prior)


def test_a_query_aware_scorer_without_a_question_is_refused(plugin, make_cartridge):
    plugin("scorer", "asks", ASKS)

    with pytest.raises(ConfigError, match="asks scores questions; give one with --query"):
        router("A0R0K3(asks)").route(make_cartridge(9))


def test_a_query_aware_scorer_that_runs_the_model_needs_its_summary_baked(plugin, make_cartridge):
    plugin("scorer", "asks", ASKS.replace("blocks(cartridge)", "blocks(cartridge, probe)"))
    cartridge, query = make_cartridge(9), Query((4,))

    with pytest.raises(ConfigError, match="asks runs the model over the document; bake a prior"):
        router("A0R0K3(asks)").route(cartridge, query, probe="the model")
    with pytest.raises(
        ArtifactError, match="the prior holds no summary for asks; bake one with it"
    ):
        router("A0R0K3(asks)").route(cartridge, query, Prior(scores=scores_of(*range(9))))


# Stacks


def test_the_canonical_stack_leaves_defaults_out(plugin, make_cartridge):
    plugin(
        "split",
        "ends",
        """
        @frozen
        class Params:
            first: int = 1
            last: int = 2

        @hookimpl
        def kri_split_blocks(layout, params):
            return Split.pin(layout.num_blocks, anchor=params.first, recent=params.last)
        """,
    )

    assert router("Ends[last=2,first=3](~top_k)").route(make_cartridge(9)).stack == "ends[first=3]"
    assert router("ENDS[last=02]").route(make_cartridge(9)).kept == (0, 7, 8)


def test_repairs_are_asked_in_the_order_written(plugin, make_cartridge):
    """CASES 9: whatever the install order; one and the same may come twice."""
    for name in ("beta", "alpha"):
        plugin(
            "repair",
            name,
            f"""
            @frozen
            class Params:
                token: int = {"alphabeta".index(name)}

            @hookimpl
            def kri_plan_repair(manifest, deviation, params):
                assert manifest.kept == (0, 8)
                return (params.token,)
            """,
        )
    deviation = torch.zeros(9)

    def order(stack):
        routed = router(stack)
        manifest = routed.route(make_cartridge(9))
        plans = [routed.plan_repair(it, manifest, deviation) for it in routed.stack.repairs]
        return [plan.tokens for plan in plans]

    assert order("A1R1K0+alpha+beta") == [(0,), (5,)]
    assert order("A1R1K0+beta+alpha") == [(5,), (0,)]
    assert order("A1R1K0+alpha[token=8]+beta+alpha") == [(8,), (5,), (0,)]
    assert order("A1R1K0") == []
    assert str(router("A1R1K0+beta+alpha").stack.config) == "A1R1K0+beta+alpha"


def test_only_what_a_stack_names_is_imported(plugin, environment):
    plugin("split", "last", LAST)
    plugin("scorer", "loud", "raise AssertionError('imported')")
    listed = environment.python(
        """
        import sys
        from kri_core import Router, parse
        Router.from_config(parse("last[budget=4]"))
        print(*sys.modules)
        """
    ).split()

    assert "split_last" in listed
    assert {name for name in listed if name.startswith(("scorer_", "kri_plugin_"))} == set()


def test_two_packages_with_one_scorer_are_told_apart_in_the_record(plugin, make_cartridge):
    plugin("scorer", "ramp", RAMP, dist="jove")
    environment_rows = Registry.discover()
    assert [row.distribution for row in environment_rows.rows if row.name == "ramp"] == ["jove"]

    manifest = router("A0R0K2(jove:ramp)").route(make_cartridge(5))

    assert (manifest.kept, manifest.stack) == ((3, 4), "A0R0K2(jove:ramp)")


def test_instances_answer_like_modules_even_equal_ones(environment, make_cartridge):
    """CASES 7: attrs makes instances equal and unhashable; pluggy keeps plugins in sets."""
    environment.install(
        "jove",
        {"repair": {"io": "jove_hooks:io", "europa": "jove_hooks:europa"}},
        {
            "jove_hooks": """
            from attrs import define
            from kri_core import hookimpl

            @define
            class Moon:
                @hookimpl
                def kri_plan_repair(self):
                    return (0,) if self is io else (1,)

            io, europa = Moon(), Moon()
            """
        },
    )
    routed = router("A1R1K0+europa+io")
    manifest = routed.route(make_cartridge(5))
    plans = [routed.plan_repair(it, manifest, torch.zeros(2)) for it in routed.stack.repairs]

    assert [plan.tokens for plan in plans] == [(1,), (0,)]


def test_routing_twice_gives_the_same_manifest(plugin, make_cartridge):
    plugin("scorer", "ramp", RAMP)
    routed, cartridge = router("A1R2K3(ramp)"), make_cartridge(20)

    assert routed.route(cartridge) == routed.route(cartridge)
    assert router("A1R2K3(ramp)").route(cartridge) == routed.route(cartridge)
