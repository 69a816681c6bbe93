"""Presses by hand on random models, pooling by hand, and planted bugs.

Every check takes the module under test, so that it also runs on the planted bugs at the end.
"""

import math

import pytest
import torch

kvpress = pytest.importorskip(
    "kvpress", reason="kvpress is not installed: .ci/run tests it on its own"
)

from kri_plugin_kvpress import token_scores  # noqa: E402
from kri_plugin_kvpress.presses import REFUSED, make_press, press_name  # noqa: E402

from kri_core import ConfigError, Layout  # noqa: E402
from kri_core.testing import is_noticed, plant_bug  # noqa: E402
from kri_core.testing.tiny import tiny, tiny_cartridge  # noqa: E402

TOKENS, SIZE, BLOCKS = 102, 8, 12  # and a tail of 6


def scored(maths, name, family="Llama", pool="mean", **overrides):
    model = tiny(family, **overrides)
    cartridge = tiny_cartridge(model, TOKENS, SIZE)
    return maths.score(make_press(name, 0.5), cartridge, model.model, pool), model, cartridge


def check_knorm_is_the_mean_length_of_a_block_s_keys(maths):
    """Of the cartridge's, made without kvpress: no layer saw less than the whole document."""
    for family, heads in (("Llama", 2), ("Qwen3", 1), ("Qwen2", 4)):
        scores, _, cartridge = scored(maths, "knorm", family, num_key_value_heads=heads)
        assert scores.shape == (3, heads, BLOCKS)
        for layer, keys in enumerate(cartridge.keys().tolist()):
            for head in range(heads):
                for block in range(BLOCKS):
                    tokens = keys[head][SIZE * block : SIZE * block + SIZE]
                    wanted = -sum(math.hypot(*key) for key in tokens) / SIZE
                    assert abs(float(scores[layer, head, block]) - wanted) < 1e-4


def check_snapkv_is_what_the_last_tokens_attend_to(maths):
    """Attention weights of transformers' eager attention; the 64 last rows, smoothed over 5."""
    for family in ("Llama", "Qwen3"):
        scores, model, cartridge = scored(maths, "snapkv", family)
        model.model.set_attn_implementation("eager")
        ids = torch.tensor([cartridge.token_ids])
        with torch.no_grad():
            attentions = model.model(ids, output_attentions=True).attentions
        for layer, weights in enumerate(attentions):
            looked = weights[0, :, -64:, :-64].mean(1).tolist()  # [q_head, token]
            heads = [[smoothed(looked[2 * head + q]) for q in (0, 1)] for head in (0, 1)]
            earlier = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in heads]
            first = max(map(max, earlier)) + 1  # the window is not to be pruned
            for head in (0, 1):
                per_token = earlier[head] + [first] * 64
                for block in range(BLOCKS):
                    wanted = sum(per_token[SIZE * block : SIZE * block + SIZE]) / SIZE
                    assert abs(float(scores[layer, head, block]) - wanted) < 1e-5


def smoothed(values):
    """Mean of five neighbours, nothing beyond the ends."""
    padded = [0, 0, *values, 0, 0]
    return [sum(padded[at : at + 5]) / 5 for at in range(len(values))]


def check_a_ratio_reaches_the_press(maths):
    """StreamingLLM keeps 4 sinks and the end: 51 of 102 tokens after the sinks are pruned."""
    scores, *_ = scored(maths, "streamingllm")
    wanted = [0.5, *[0] * 5, 1 / 8, *[1] * 5]
    torch.testing.assert_close(scores, torch.tensor(wanted).expand(3, 2, BLOCKS))


def check_pooling_by_hand(maths):
    layout = Layout(1, 1, 8, block_size=2, num_tokens=5)
    per_token = torch.tensor([[1, 3, -6, 2, 100]], dtype=torch.bfloat16)
    for how, wanted in (("mean", [2, -2]), ("max", [3, 2]), ("sum", [4, -4])):
        pooled = maths.pooled(per_token, layout, how)
        assert pooled.dtype == torch.float32
        assert pooled.tolist() == [wanted]


def check_draws_are_the_same_and_nobody_else_s(maths):
    torch.manual_seed(1)
    first = {name: scored(maths, name)[0] for name in ("random", "leveragescore")}
    state = torch.random.get_rng_state()
    for name, scores in first.items():
        torch.manual_seed(2)
        assert scored(maths, name)[0].equal(scores)
    torch.manual_seed(1)
    assert torch.random.get_rng_state().equal(state)


def check_the_model_is_left_as_it_was(maths):
    model = tiny("Llama")
    cartridge = tiny_cartridge(model, TOKENS, SIZE)
    before = [name for name, _ in model.model.named_modules(remove_duplicate=False)]
    maths.score(make_press("expectedattention", 0.5), cartridge, model.model, "mean")
    assert [n for n, _ in model.model.named_modules(remove_duplicate=False)] == before


def check_keys_of_one_layer_are_held_at_a_time(maths):
    held = []

    class Counting(kvpress.KnormPress):
        def score(self, module, hidden_states, keys, values, attentions, kwargs):
            cache = kwargs["past_key_values"]
            held.append(sum(layer.keys.shape[2] for layer in cache.layers))
            return super().score(module, hidden_states, keys, values, attentions, kwargs)

    model = tiny("Llama")
    maths.score(Counting(), tiny_cartridge(model, TOKENS, SIZE), model.model, "mean")
    assert held == [TOKENS] * 3


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(token_scores)


PRESSES = {
    press_name(name)
    for name, press in vars(kvpress).items()
    if isinstance(press, type) and issubclass(press, kvpress.ScorerPress)
} - {"scorer"}


@pytest.mark.parametrize("name", sorted(PRESSES - REFUSED.keys()))
def test_every_other_press_scores_every_block(name):
    scores, *_ = scored(token_scores, name)

    assert scores.shape == (3, 2, BLOCKS)
    assert scores.dtype == torch.float32
    assert bool(scores.isfinite().all())
    assert len(scores.mean((0, 1)).unique()) > 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_press_that_a_bake_cannot_feed_is_refused_by_name(name):
    assert name in PRESSES
    with pytest.raises(ConfigError) as caught:
        make_press(name, 0.5)
    assert str(caught.value) == f"kvpress:{name} {REFUSED[name]}"


def test_what_is_no_scorer_press_is_refused_with_those_there_are():
    for name in ("kvzip", "scorer", "knrom"):
        with pytest.raises(ConfigError, match=f"no ScorerPress called '{name}'; it has cap, com"):
            make_press(name, 0.5)


PLANTED = {
    "heads averaged": (
        "pooled(scores[0], ",
        "pooled(scores[0].mean(0, keepdim=True).expand_as(scores[0]), ",
    ),
    "the last layer for all": ("layers[layer] for layer", "layers[max(layers)] for layer"),
    "layers upside down": ("range(cartridge.layout.num_layers)", "reversed(range(3))"),
    "the document without its end": ("[cartridge.token_ids]", "[cartridge.token_ids[:-6]]"),
    "the tail for the head": (
        "per_token[:, : layout.num_blocks * layout.block_size]",
        "per_token[:, -layout.num_blocks * layout.block_size :]",
    ),
    "max for mean": ('"mean": whole.mean', '"mean": whole.amax'),
    "mean for sum": ('"sum": whole.sum', '"sum": whole.mean'),
    "min for max": ('"max": whole.amax', '"max": whole.amin'),
    "pooled in the press's dtype": (".float().unflatten", ".unflatten"),
    "unseeded": ("torch.manual_seed(SEED)", "pass"),
    "draws taken from others": (
        'with torch.random.fork_rng([device] if device.type == "cuda" else []):',
        "if True:",
    ),
    "the rotary embedding left": ("delattr(model.get_submodule(parent), child)", "del parent"),
    "all layers' keys held": ("keys[:, :, :0].clone(), values[:, :, :0].clone()", "keys, values"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], token_scores))
