"""What is refused, and what one prior serves."""

import pytest
import torch
from attrs import evolve
from kri_plugin_q import centre, cumulant, mean, quest
from kri_plugin_q.asking import question_queries

from kri_core import ArtifactError, ConfigError, Query, Split
from kri_core.testing import FakeModel, FakeProbe

MODEL = FakeModel.random()
DOCUMENT = MODEL.cartridge(range(20, 44))
PINS = Split.pin(6, anchor=1, recent=1, mid_budget=2)
SCORERS = {"kri-q": mean, "centre": centre, "cumulant": cumulant, "quest": quest}


def probe():
    return FakeProbe(MODEL, DOCUMENT, texts=())


def queries(document, source):
    asker = FakeProbe(MODEL, document, texts=())
    return question_queries(Query((3, 8)), PINS, asker, 6, mean.Params(source=source))


def summary_of(scorer):
    args = (DOCUMENT, probe()) if scorer is centre else (DOCUMENT,)
    return scorer.kri_summarise_blocks(*args)


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_without_a_model_it_is_refused(scorer):
    said = "this scorer runs the question through the model, and none is at hand; give one with"
    with pytest.raises(ConfigError, match=said):
        scorer.kri_score_query(summary_of(scorer), Query((1,)), PINS, None, scorer.Params())


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_another_scorer_s_summary_is_refused(scorer):
    with pytest.raises(ArtifactError, match=r"summary holds features but no .*: another scorer"):
        scorer.kri_score_query(
            {"features": torch.ones(6, 2)}, Query((1,)), PINS, probe(), scorer.Params()
        )


def test_a_question_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="the question has no tokens; ask something"):
        question_queries(Query(()), PINS, probe(), 6, mean.Params())


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_scores_are_of_every_layer_and_kv_head_or_of_layer_0(scorer):
    for source, layers in (("pinned", 3), ("full", 3), ("layer0", 1)):
        params = scorer.Params(source=source)
        scores = scorer.kri_score_query(summary_of(scorer), Query((3, 8, 1)), PINS, probe(), params)
        assert scores.shape == (layers, 2, 6)
        assert scores.dtype == torch.float32


def test_layer_0_does_not_see_the_document():
    """ALGORITHMS 4.2: another document of that length gives the same queries, pins do not."""
    other = MODEL.cartridge(range(10, 34))

    assert queries(DOCUMENT, "layer0").equal(queries(other, "layer0"))
    assert not queries(DOCUMENT, "pinned").equal(queries(other, "pinned"))


def test_only_what_is_shown_counts():
    """Pinned queries do not change with the mid blocks; full ones do."""
    kv = DOCUMENT.kv.clone()
    kv[2:5] *= 2
    other = evolve(DOCUMENT, kv=kv)

    assert queries(DOCUMENT, "pinned").equal(queries(other, "pinned"))
    assert not queries(DOCUMENT, "full").equal(queries(other, "full"))


def scores_of(scorer, model, document, source="full"):
    asker = FakeProbe(model, document, texts=())
    args = (document, asker) if scorer is centre else (document,)
    summary = scorer.kri_summarise_blocks(*args)
    split = Split.pin(document.layout.num_blocks, anchor=1, recent=1)
    params = scorer.Params(source=source)
    return scorer.kri_score_query(summary, Query((3, 8, 1)), split, asker, params)


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_float32_ranks_as_float64(scorer):
    rankings = []
    for dtype in (torch.float32, torch.float64):
        model = FakeModel.random(dtype=dtype)
        document = model.cartridge(range(60), dtype=dtype)
        scores = scores_of(scorer, model, document)
        rankings.append(scores.mean((0, 1)).argsort().tolist())

    assert rankings[0] == rankings[1]


@pytest.mark.parametrize("scorer", [mean, cumulant, quest])
def test_scores_move_with_the_blocks(scorer):
    """Order of storage says nothing; kri-q-centre is left out, for it needs to know positions."""
    order = [3, 0, 5, 1, 4, 2]
    moved = evolve(DOCUMENT, kv=DOCUMENT.kv[order])
    plain = scores_of(scorer, MODEL, DOCUMENT)

    torch.testing.assert_close(
        scores_of(scorer, MODEL, moved), plain[..., order], rtol=0, atol=1e-5
    )
    assert not torch.allclose(plain, plain[..., order], atol=1e-2)


@pytest.mark.parametrize("scorer", [mean, cumulant, quest])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_cartridge_is_summed_in_full(scorer, dtype):
    """Sixteen equal keys: their mean, and the block's bounds, are the key itself."""
    document = MODEL.cartridge((7,) * 32, block_size=16, dtype=dtype)
    equal = evolve(document, kv=document.kv[..., :1, :].expand_as(document.kv))
    parts = scorer.kri_summarise_blocks(equal)

    key = equal.kv[:, :, 0, :, 0].permute(1, 2, 0, 3).float()  # [layer, kv_head, block, head_dim]
    kept = [parts[name] for name in ("mean", "least", "greatest") if name in parts]
    assert kept
    assert all(part.float().equal(key) for part in kept)
