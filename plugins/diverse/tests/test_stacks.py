"""In a stack: parameters, refusals, and the features of a real model."""

import pytest
import torch
from kri_plugin_diverse import mmr

from kri_core import (
    BlockScores,
    ConfigError,
    Prior,
    ProbeText,
    Router,
    Split,
    block_features,
    centre_means,
    parse,
)


@pytest.mark.parametrize("name", ["mmr", "facility", "logdet", "residual"])
def test_without_features_it_says_what_to_do(name):
    selector = Router.from_config(parse(f"A0R0K1(~{name})")).stack.selector
    said = f"'{name}' compares blocks by their features, and there are none here; bake a prior with"
    with pytest.raises(ConfigError, match=said):
        selector.call(
            "kri_select_blocks",
            scores=BlockScores(torch.zeros(1, 1, 4)),
            split=Split((), (0, 1, 2, 3), (), 1),
            features=None,
            prefix_hash="",
        )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mmr[weight=1.5]", "'weight' must be <= 1: 1.5"),
        ("logdet[beta=0]", "'beta' must be > 0: 0"),
        ("residual[alpha=-1]", "'alpha' must be >= 0: -1"),
        ("facility[detrend=4]", "detrend is an odd number of blocks from 3"),
    ],
)
def test_a_parameter_out_of_range_is_refused(written, said):
    with pytest.raises(ConfigError, match=said):
        Router.from_config(parse(f"A1R2K13(~{written})"))


def test_the_defaults_are_left_out_of_the_canonical_stack():
    written = "A0R0K16(~MMR[weight=0.70, detrend=33, norm=none])"

    assert str(Router.from_config(parse(written)).stack.config) == "A0R0K16(~mmr[detrend=33])"
    assert mmr.Params().weight == 0.7


def test_the_features_of_a_real_model_serve_every_selector():
    """Six blocks of a small Llama; the first and the last are pinned, two of four are chosen."""
    pytest.importorskip("transformers")
    from kri_core.substrate.hf import HfProbe
    from kri_core.testing.tiny import tiny_cartridge, tiny_llama

    model = tiny_llama()
    cartridge = tiny_cartridge(model)
    rope = HfProbe(model, cartridge, (ProbeText("", (65,)),), 4).rope
    features = block_features(centre_means(cartridge, rope))
    scores = BlockScores(torch.rand(1, 1, 6, generator=torch.Generator().manual_seed(0)))
    prior = Prior(scores=scores, summary={"features": features})

    for name in ("mmr", "facility", "logdet", "residual"):
        manifest = Router.from_config(parse(f"A1R1K2(~{name})")).route(cartridge, prior=prior)
        assert {0, 5} < set(manifest.kept)
        assert len(manifest.kept) == 4
        assert (manifest.scores, manifest.stack) == (
            tuple(scores.values.flatten().tolist()),
            f"A1R1K2(~{name})",
        )
