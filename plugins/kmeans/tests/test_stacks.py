"""In a stack: parameters, and lists that a bake keeps and a request reads."""

import pytest
from kri_plugin_kmeans import kmeans_keys
from kri_plugin_kmeans.clustering import representatives
from kri_plugin_kmeans.number_lists import chosen_budgets, chosen_layers

from kri_core import ArtifactError, ConfigError, Prior, Router, block_features, parse
from kri_core.testing import FakeModel, FakeProbe


def baked(**params):
    """A random document of 40 blocks of 4 and a tail, and its prior by kmeans-keys."""
    model = FakeModel.random()
    cartridge = model.cartridge([11 * t * t % 64 for t in range(162)])
    probe, chosen = FakeProbe(model, cartridge), kmeans_keys.Params(**params)
    lists = kmeans_keys.kri_rank_blocks(cartridge, probe, chosen)
    return cartridge, Prior(blocks_per_budget=lists)


def test_a_list_is_read_by_its_total_budget_and_the_pins_are_taken_out():
    """A1R2K13 has budget 16: the first 13 of list 16 that are not 0, 38 or 39."""
    cartridge, prior = baked()
    listed = prior.blocks_per_budget[16]
    manifest = Router.from_config(parse("A1R2K13(kmeans-keys)")).route(cartridge, prior=prior)

    mid = [block for block in listed if block not in (0, 38, 39)][:13]
    assert manifest.kept == tuple(sorted({0, 38, 39, *mid}))
    assert manifest.stack == "A1R2K13(kmeans-keys)"
    assert sorted(prior.blocks_per_budget) == list(range(1, 40))


def test_only_the_budgets_asked_for_are_kept():
    cartridge, prior = baked(budgets="8-16")

    assert list(prior.blocks_per_budget) == [8, 16]
    with pytest.raises(ArtifactError, match=r"the prior has no entry for K=9, only \[8, 16\]"):
        Router.from_config(parse("A0R0K9")).route(cartridge, prior=prior)


def test_layers_choose_whose_keys_are_clustered():
    lists = [baked(layers=layers)[1] for layers in ("0", "2", "0..2", "all")]
    zero, two, three, every = (prior.blocks_per_budget for prior in lists)

    assert zero != two
    assert three == every != zero
    with pytest.raises(ConfigError, match="layers=1-3 names layer 3, but the cartridge has layers"):
        baked(layers="1-3")


def test_keys_are_averaged_at_the_blocks_centre():
    """The plain mean of stored keys would give other lists."""
    cartridge, prior = baked()
    plain = cartridge.keys()[..., : 4 * 40, :].unflatten(2, (40, 4)).mean(3)
    lists = representatives(block_features(plain), range(1, 40))

    assert lists != prior.blocks_per_budget


def test_without_a_model_it_asks_for_one():
    model = FakeModel.random()
    cartridge = model.cartridge(range(24))
    router = Router.from_config(parse("A0R0K2(kmeans-keys)"))
    with pytest.raises(ConfigError, match="kmeans-keys runs the model over the document; bake a"):
        router.route(cartridge)


def test_keydiff_and_knorm_need_neither_model_nor_bake():
    cartridge = FakeModel.random().cartridge(range(24))
    for name in ("keydiff", "knorm"):
        manifest = Router.from_config(parse(f"A1R0K2({name})")).route(cartridge)
        assert len(manifest.kept) == 3
        with pytest.raises(ConfigError, match="write norm=rank beside it"):
            Router.from_config(parse(f"A1R0K2({name}~top-k[detrend=3])")).route(cartridge)


def test_lists_of_numbers():
    assert chosen_budgets("8-16-32", 128) == [8, 16, 32]
    assert chosen_budgets("3..5-2-4", 128) == [2, 3, 4, 5]
    assert chosen_budgets("all", 4) == [1, 2, 3]
    assert chosen_budgets("1..999999999", 4) == [1, 2, 3]
    assert chosen_budgets("8-16", 6) == [6]
    assert chosen_budgets("all", 1) == [1]
    assert chosen_layers("0-2..3", 30) == [0, 2, 3]
    assert chosen_layers("all", 3) == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "8--16", "8;16", "16..8", "-8", "1...3", "some"])
def test_a_list_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"budgets is such as 8-16-32, 1\.\.64 or all; got"):
        kmeans_keys.Params(budgets=text)
    with pytest.raises(ConfigError, match="layers is such as"):
        kmeans_keys.Params(layers=text)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"budgets are numbers of blocks from 1; got '0\.\.4'"):
        Router.from_config(parse("whole(kmeans-keys[budgets=0..4])"))


def test_a_real_model_end_to_end():
    pytest.importorskip("transformers")
    from kri_core import ProbeText
    from kri_core.substrate.hf import HfProbe
    from kri_core.testing.tiny import tiny_cartridge, tiny_llama

    model = tiny_llama()
    cartridge = tiny_cartridge(model)
    probe = HfProbe(model, cartridge, (ProbeText("", (65,)),), 4)
    lists, again = (
        kmeans_keys.kri_rank_blocks(cartridge, probe, kmeans_keys.Params()) for _ in range(2)
    )
    prior = Prior(blocks_per_budget=lists)

    assert lists == again
    assert [len(blocks) for blocks in lists.values()] == [1, 2, 3, 4, 5]
    assert len(Router.from_config(parse("A1R1K2")).route(cartridge, prior=prior).kept) == 4
