"""What the maths must give on attention written by hand, and that a wrong formula is noticed.

Every check takes the two modules under test, so that it also runs on the planted bugs at the end.
"""

from types import SimpleNamespace

import pytest
import torch
from kri_plugin_a import attention_mass, observation_window

from kri_core import Layout
from kri_core.testing import FakeModel, FakeProbe, causal_attention, is_noticed, plant_bug, watched

MATHS = {"mass": attention_mass, "window": observation_window}


def layout(num_blocks=16, block_size=8, tail=0, kv_heads=1, layers=1):
    tokens = num_blocks * block_size + tail
    return Layout(layers, kv_heads, head_dim=8, block_size=block_size, num_tokens=tokens)


def uniform(doc):
    """F4: every query spreads its attention evenly over what it sees."""
    return causal_attention(torch.zeros(1, 1, doc.num_tokens, doc.num_tokens).double())


def hub(doc, block, strength=2.0, sink=0.0):
    """F6: every later query looks at one block more than at others, F7: and at four sinks."""
    logits = torch.zeros(1, 1, doc.num_tokens, doc.num_tokens, dtype=torch.float64)
    logits[..., doc.tokens_of([block])] += strength
    logits[..., :4] += sink
    return causal_attention(logits)


def drawn(doc, q_heads=1, seed=0, sharp=2.0):
    """Random attention [layer, q_head, token, token] that is far from uniform."""
    draw = torch.Generator().manual_seed(seed)
    shape = (doc.num_layers, q_heads, doc.num_tokens, doc.num_tokens)
    return causal_attention(sharp * torch.randn(shape, generator=draw, dtype=torch.float64))


def prefill(maths, weights, doc, exposure="lift", n_sink=0, window=0):
    return watched(maths.mass.over_prefill(doc, exposure, n_sink, window), weights, doc)


def close(got, wanted, tolerance=1e-6):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=tolerance)


def by_block(weights, doc):
    """[..., token] summed to [..., block]."""
    whole = weights[..., : doc.num_blocks * doc.block_size]
    return whole.unflatten(-1, (doc.num_blocks, doc.block_size)).sum(-1)


def check_uniform_attention_is_lifted_to_one(maths):
    """ALGORITHMS 2.5, 1: and `none` favours block 0 by 104 times, `count` is not flat either."""
    for tail, n_sink, window in ((0, 0, 0), (3, 0, 0), (3, 3, 0), (0, 4, 50), (3, 0, 50)):
        doc = layout(tail=tail)
        lift = prefill(maths, uniform(doc), doc, "lift", n_sink, window)
        close(lift, torch.ones(1, 1, 16), 1e-9)
    doc = layout()
    none = prefill(maths, uniform(doc), doc, "none")[0, 0]
    count = prefill(maths, uniform(doc), doc, "count")[0, 0]
    assert (none.diff() < 0).all()
    assert float(none[0] / none[-1]) == pytest.approx(104, abs=0.5)
    assert count[0] > 2 * count[-1]


def check_masses_and_the_tails_share_sum_to_one(maths):
    """ALGORITHMS 2.5, 2: in every layer and KV head, `none` leaves out nothing but the tail."""
    for tail in (0, 3):
        doc = layout(4, 4, tail, kv_heads=2, layers=3)
        weights = drawn(doc, q_heads=4)
        none = prefill(maths, weights, doc, "none")
        on_tail = weights[..., 16:].sum(-1).mean(-1).reshape(3, 2, 2).mean(2)
        assert none.shape == (3, 2, 4)
        close(none.sum(-1) + on_tail, torch.ones(3, 2))


def check_a_heavy_hitter_is_first_wherever_it_lies(maths):
    """ALGORITHMS 2.5, 3: by lift; by `none` a late one is not."""
    doc = layout()
    for block in (1, 8, 14):
        lift = prefill(maths, hub(doc, block), doc)[0, 0]
        assert lift.argmax() == block
    none = prefill(maths, hub(doc, 14), doc, "none")[0, 0]
    assert none.argmax() == 0


def check_a_dropped_sink_is_as_if_it_had_never_been(maths):
    """F7: four sinks that take 99.97 % of each late row hide nothing once they are dropped."""
    doc = layout()
    with_sink, without = hub(doc, 8, sink=12.0), hub(doc, 8, sink=0.0)
    kept = prefill(maths, with_sink, doc)[0, 0]
    assert kept.argmax() == 0
    for exposure in ("none", "count", "lift"):
        for window in (0, 20):
            dropped, clean = (
                prefill(maths, weights, doc, exposure, 4, window)
                for weights in (with_sink, without)
            )
            close(dropped, clean, 1e-5)
    assert dropped[0, 0].argmax() == 8
    rest = drawn(doc)[0, 0, 4:] * (torch.arange(doc.num_tokens) >= 4)
    wanted = by_block(rest / rest.sum(-1, keepdim=True), doc).mean(0)
    close(prefill(maths, drawn(doc), doc, "none", 4)[0, 0], wanted)


def check_a_block_of_sinks_scores_zero(maths):
    doc = layout(4, 4)
    lift = prefill(maths, drawn(doc), doc, "lift", 6)[0, 0]
    assert lift[0] == 0
    assert (lift[1:] > 0).all()


def check_exposures_by_hand(maths):
    """Two blocks of 2 and a tail of 1: rows 0…4 put 1, 1/2, 1/3, 1/4 and 1/5 on each token."""
    doc = layout(2, 2, tail=1)
    mass = torch.tensor([1 + 1 + 2 / 3 + 2 / 4 + 2 / 5, 1 / 3 + 2 / 4 + 2 / 5])
    close(prefill(maths, uniform(doc), doc, "none")[0, 0], mass / 5)
    close(prefill(maths, uniform(doc), doc, "count")[0, 0], mass / torch.tensor([5, 3]))
    recent = torch.tensor([2 / 4 + 2 / 5, 2 / 4 + 2 / 5]) / 2
    close(prefill(maths, uniform(doc), doc, "none", window=2)[0, 0], recent)
    close(prefill(maths, uniform(doc), doc, "count", window=2)[0, 0], recent)
    one = torch.tensor([[[[1.0, 0, 0, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]]]).double()
    lift = torch.tensor([2.5 / (1 + 1 + 2 / 3 + 2 / 4), 1.5 / (1 / 3 + 2 / 4)])
    close(prefill(maths, one, layout(2, 2), "lift")[0, 0], lift)


def check_grouped_queries_are_the_mean_of_their_heads(maths):
    """ALGORITHMS 2.5, 4: with every KV head written out, group means are the same."""
    grouped, written_out = layout(4, 4, 3, kv_heads=2), layout(4, 4, 3, kv_heads=4)
    weights = drawn(grouped, q_heads=4)
    for watch in WATCHERS(maths):
        few, many = (watched(watch(doc), weights, doc) for doc in (grouped, written_out))
        if few.shape[1] == 2:
            # Block 3 is SnapKV's window: a maximum is pinned there, which is no mean of heads.
            close(few[..., :3], many.reshape(1, 2, 2, 4).mean(2)[..., :3])
            assert not torch.allclose(few[:, 0], few[:, 1], atol=1e-3)
        else:
            close(few, many)


def WATCHERS(maths):  # noqa: N802 - a table that needs its modules
    return (
        maths.mass.last_token,
        maths.mass.last_token_of_all_heads,
        maths.mass.heavy_hitters,
        lambda doc: maths.mass.over_prefill(doc, "lift", 0, 0),
        lambda doc: maths.mass.over_prefill(doc, "none", 3, 9),
        lambda doc: maths.window.ObservationWindow(doc, 5, 3),
    )


def check_the_last_token_is_the_documents_last(maths):
    doc = layout(4, 4, tail=2, kv_heads=2, layers=3)
    weights = drawn(doc, q_heads=4)
    row = by_block(weights[:, :, -1], doc)  # [layer, q_head, block]
    kri_a = watched(maths.mass.last_token(doc), weights, doc)
    tova = watched(maths.mass.last_token_of_all_heads(doc), weights, doc)

    close(kri_a, row.reshape(3, 2, 2, 4).mean(2))
    close(tova, row.mean(1, keepdim=True))
    assert tova.shape == (3, 1, 4)  # ALGORITHMS 11.A: one set for all KV heads of a layer


def check_h2o_is_the_column_sums(maths):
    doc = layout(4, 4, tail=2, kv_heads=2, layers=3)
    weights = drawn(doc, q_heads=4)
    columns = by_block(weights.sum(2), doc).reshape(3, 2, 2, 4).mean(2)
    close(watched(maths.mass.heavy_hitters(doc), weights, doc), columns)
    close(prefill(maths, weights, doc, "none"), columns / doc.num_tokens)


def check_a_window_of_one_is_kri_a(maths):
    """ALGORITHMS 11.A: with kernel 1, on every block but the window's own."""
    for tail, own in ((0, 1), (2, 0)):
        doc = layout(4, 4, tail, kv_heads=2, layers=3)
        weights = drawn(doc, q_heads=4)
        kri_a = watched(maths.mass.last_token(doc), weights, doc)
        snapkv = watched(maths.window.ObservationWindow(doc, 1, 1), weights, doc)
        close(snapkv[..., : 4 - own], kri_a[..., : 4 - own])
        if own:
            close(snapkv[..., 3], snapkv[..., :3].amax(-1) + 1)


def check_snapkv_by_hand(maths):
    """Four blocks of 2; a window of 3 rows looks at tokens 0…4; token 4 shares block 2 with it."""
    doc = layout(4, 2)
    weights = causal_attention(torch.zeros(1, 1, 8, 8).double())
    weights[0, 0, 5:] = torch.tensor(
        [
            [0.3, 0, 0, 0, 0.6, 0.1, 0, 0],
            [0, 0.9, 0, 0, 0, 0, 0.1, 0],
            [0, 0, 0, 0.3, 0.6, 0, 0, 0.1],
        ]
    )
    mean = torch.tensor([0.3, 0.9, 0, 0.3, 1.2]) / 3
    plain = torch.stack([mean[:2].sum(), mean[2:4].sum()])
    close(watched(maths.window.ObservationWindow(doc, 3, 1), weights, doc)[0, 0, :2], plain)
    smooth = torch.tensor([1.2 + 1.2, 1.2 + 1.5]) / 3 / 3  # zeros before token 0
    scores = watched(maths.window.ObservationWindow(doc, 3, 3), weights, doc)[0, 0]
    close(scores, torch.tensor([*smooth, smooth[1] + 1, smooth[1] + 1]))


def check_snapkv_over_a_window_that_covers_everything(maths):
    doc = layout(4, 2)
    for window in (7, 8, 64):
        scores = watched(maths.window.ObservationWindow(doc, window, 5), uniform(doc), doc)
        assert (scores == 1).all()


def check_a_models_prefill_gives_its_dense_attention(maths):
    """ALGORITHMS 2.5, 5: chunk by chunk, from the tokens that are watched on."""
    model = FakeModel.random()
    cartridge = model.cartridge([7 * t % 64 for t in range(26)])
    doc = cartridge.layout
    dense = model.run(cartridge.token_ids, range(26)).weights.double()  # [layer, q_head, …]
    for watch in WATCHERS(maths):
        watcher = watch(doc)
        FakeProbe(model, cartridge).prefill(trimmed(watcher), watcher.first_token)
        close(watcher.scores(), watched(watch(doc), dense, doc))


def trimmed(watcher):
    """What the core does: a watcher sees no token before its first one."""
    from attrs import evolve

    def see(chunk):
        skip = max(0, watcher.first_token - chunk.first_token)
        if skip < chunk.queries.shape[1]:
            watcher.see(
                evolve(
                    chunk,
                    first_token=chunk.first_token + skip,
                    queries=chunk.queries[:, skip:],
                    block_mass=chunk.block_mass[:, skip:],
                )
            )

    return see


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(SimpleNamespace(**MATHS))


PLANTED = {
    "a mean over rows": ("mass", "mass.sum(1, dtype", "mass.mean(1, dtype"),
    "only the last chunk": ("mass", "else before + rows", "else rows"),
    "sinks kept": ("mass", "chunk.without_sinks(self.n_sink,", "chunk.without_sinks(0,"),
    "sinks dropped, exposure not": ("mass", "key[:n_sink] = 0", "pass"),
    "exposure without renormalised rows": (
        "mass",
        "first + 1 - n_sink, tokens + 1 - n_sink",
        "first + 1, tokens + 1",
    ),
    "exposure counts from the next token": (
        "mass",
        "first + 1 - n_sink, tokens + 1 - n_sink",
        "first + 2 - n_sink, tokens + 2 - n_sink",
    ),
    "exposure of earlier queries": ("mass", "row.flip(0).cumsum(0).flip(0)", "row.cumsum(0)"),
    "exposure averaged over a block": (
        "mass",
        "reshape(blocks, size).sum(1)",
        "reshape(blocks, size).mean(1)",
    ),
    "lift upside down": (
        "mass",
        "per_kv_head(sums / shares.where",
        "per_kv_head(1 / sums * shares.where",
    ),
    "0/0 for a block of sinks": ("mass", "shares.where(shares > 0, torch.inf)", "shares"),
    "window ignored": ("mass", "layout.num_tokens - window if window else 0)", "0)"),
    "count from the block's end": (
        "mass",
        "torch.arange(blocks, dtype=torch.float64) * size",
        "torch.arange(1, blocks + 1, dtype=torch.float64) * size",
    ),
    "count ignores the window": ("mass", "starts.clamp(min=first)", "starts"),
    "none divides by all tokens": ("mass", "float(tokens - first)", "float(tokens)"),
    "kri-a: the token before the last": (
        "mass",
        "partial(per_kv_head, layout=layout), layout.num_tokens - 1)",
        "partial(per_kv_head, layout=layout), layout.num_tokens - 2)",
    ),
    "kri-a: the last block's last token": (
        "mass",
        "partial(per_kv_head, layout=layout), layout.num_tokens - 1)",
        "partial(per_kv_head, layout=layout), layout.num_tokens - 1 - len(layout.tail))",
    ),
    "tova: max over heads": (
        "mass",
        "partial(torch.mean, dim=1, keepdim=True)",
        "partial(torch.amax, dim=1, keepdim=True)",
    ),
    "tova: the document's last two tokens": (
        "mass",
        "dim=1, keepdim=True), layout.num_tokens - 1",
        "dim=1, keepdim=True), layout.num_tokens - 2",
    ),
    "h2o: without the first token": (
        "mass",
        "partial(per_kv_head, layout=layout), 0)",
        "partial(per_kv_head, layout=layout), 1)",
    ),
    "max over a group": ("mass", "-1, blocks).mean(2)", "-1, blocks).amax(2)"),
    "interleaved groups": (
        "mass",
        "layout.num_kv_heads, -1, blocks).mean(2)",
        "-1, layout.num_kv_heads, blocks).mean(1)",
    ),
    "snapkv: max over a group": ("window", "self.earlier).mean(1)", "self.earlier).amax(1)"),
    "snapkv: interleaved groups": (
        "window",
        "(self.layout.num_kv_heads, -1, self.earlier).mean(1)",
        "(-1, self.layout.num_kv_heads, self.earlier).mean(0)",
    ),
    "snapkv: a sum over rows": ("window", "sums / (layout.num_tokens - self.first_token)", "sums"),
    "snapkv: max pool": (
        "window",
        "avg_pool1d(means, self.kernel, stride=1, padding=self.kernel // 2)",
        "torch.nn.functional.max_pool1d(means, self.kernel, stride=1, padding=self.kernel // 2)",
    ),
    "snapkv: mean over a block": ("window", "by_block.sum(-1)", "by_block.mean(-1)"),
    "snapkv: window not pinned": ("window", "scores[..., before:] = pinned", "pass"),
    "snapkv: pinned as the best": ("window", "keepdim=True) + 1 if", "keepdim=True) if"),
    "snapkv: a shared block not pinned": (
        "window",
        "self.earlier // layout.block_size\n",
        "-(-self.earlier // layout.block_size)\n",
    ),
    "snapkv: window one token late": (
        "window",
        "layout.num_tokens - window)",
        "layout.num_tokens - window + 1)",
    ),
    "snapkv: only the last chunk": ("window", "self.sums.get(chunk.layer, 0) + grouped", "grouped"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    part, right, wrong = PLANTED[fault]
    mutant = plant_bug(right, wrong, MATHS[part])

    assert is_noticed(CHECKS.values(), SimpleNamespace(**MATHS | {part: mutant}))
