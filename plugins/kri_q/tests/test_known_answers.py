"""What the maths must give, from sums written out by hand, and that a wrong formula is noticed.

Every check takes the modules under test, so that it also runs on the planted bugs at the end.
"""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from kri_plugin_q import affinity, asking, mean, summaries

from kri_core import Layout, Query, Split
from kri_core.testing import FakeModel, FakeProbe, cartridge_of, is_noticed, plant_bug

SIZE, BLOCKS, DIM = 4, 5, 8
QUESTION = Query((3, 8, 1))


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cartridge(keys, block_size=SIZE):
    """Of any keys [layer, kv_head, token, head_dim]; values play no part."""
    layers, heads, tokens, dim = keys.shape
    kv = torch.stack([keys, torch.zeros_like(keys)], 1)
    return cartridge_of(Layout(layers, heads, dim, block_size, tokens), kv, range(tokens))


def close(got, wanted, tolerance=1e-6):
    torch.testing.assert_close(
        torch.as_tensor(got).double(), torch.as_tensor(wanted).double(), rtol=0, atol=tolerance
    )


def by_hand(queries, keys, block_size, score, pool_tokens, pool_heads):
    """Nested loops over lists: score(q, keys of a block) → [layer][kv_head][block]."""
    pool = {"last": lambda xs: xs[-1], "mean": lambda xs: sum(xs) / len(xs), "max": max}
    layers, heads, tokens, _ = keys.shape
    group = queries.shape[1] // heads
    answer = torch.zeros(layers, heads, tokens // block_size, dtype=torch.float64)
    for layer, head, block in ((i, j, k) for i in range(layers) for j in range(heads)
                               for k in range(tokens // block_size)):  # fmt: skip
        inside = keys[layer, head, block * block_size : (block + 1) * block_size].tolist()
        per_head = [
            pool[pool_tokens]([score(q, inside) for q in queries[layer, asker].tolist()])
            for asker in range(head * group, (head + 1) * group)
        ]
        answer[layer, head, block] = pool[pool_heads](per_head)
    return answer


def mean_of(keys):
    return [sum(channel) / len(keys) for channel in zip(*keys, strict=True)]


def product(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def hand_dot(q, keys):
    return product(q, mean_of(keys)) / math.sqrt(len(q))


def hand_cosine(q, keys):
    return product(q, mean_of(keys)) / math.hypot(*q) / math.hypot(*mean_of(keys))


def hand_cumulant(q, keys):
    centre = mean_of(keys)
    variance = mean_of([[(x - m) ** 2 for x, m in zip(k, centre, strict=True)] for k in keys])
    spread = sum(x * x * v for x, v in zip(q, variance, strict=True)) / len(q)
    return math.log(len(keys)) + hand_dot(q, keys) + spread / 2


def hand_quest(q, keys):
    channels = zip(*keys, strict=True)
    return sum(max(x * min(c), x * max(c)) for x, c in zip(q, channels, strict=True))


def mean_scores(bugged, queries, document, similarity="dot", tokens="last", heads="mean"):
    means = bugged.summaries.block_means(document)
    return bugged.affinity.score_means(queries, means, similarity, tokens, heads)


def cumulant_scores(bugged, queries, document, tokens="last", heads="mean"):
    parts = bugged.summaries.block_moments(document)
    names = ("mean", "variance", "block_size")
    held = [parts[name] for name in names]
    return bugged.affinity.score_cumulants(queries, *held, tokens, heads)


def quest_scores(bugged, queries, document, tokens="last"):
    bounds = bugged.summaries.block_bounds(document)
    return bugged.affinity.score_bounds(queries, *bounds, tokens)


def check_every_score_is_its_formula(bugged):
    """2 layers, 4 query heads over 2 KV heads, 3 question tokens."""
    keys, queries = draw(2, 2, SIZE * BLOCKS, DIM), draw(2, 4, 3, DIM, seed=1)
    document = cartridge(keys)
    for tokens in ("last", "mean", "max"):
        for heads in ("mean", "max"):
            pools = (tokens, heads)
            for name, formula in (("dot", hand_dot), ("cosine", hand_cosine)):
                wanted = by_hand(queries, keys, SIZE, formula, *pools)
                close(mean_scores(bugged, queries, document, name, *pools), wanted)
            wanted = by_hand(queries, keys, SIZE, hand_cumulant, *pools)
            close(cumulant_scores(bugged, queries, document, *pools), wanted)
        wanted = by_hand(queries, keys, SIZE, hand_quest, tokens, "max")
        close(quest_scores(bugged, queries, document, tokens), wanted, 1e-5)


def check_quest_is_a_bound_on_every_key(bugged):
    """ALGORITHMS 4.5, 1: and the keys' own maximum for one token a block; all heads alike."""
    keys, queries = draw(1, 1, SIZE * BLOCKS, DIM), draw(1, 2, 1, DIM, seed=1)
    logits = torch.einsum("hd,td->ht", queries[0, :, 0], keys[0, 0]).amax(0)  # [token]
    bound = quest_scores(bugged, queries, cartridge(keys))[0, 0]
    tight = quest_scores(bugged, queries, cartridge(keys, block_size=1))[0, 0]

    assert (bound >= logits.view(BLOCKS, SIZE).amax(1) - 1e-6).all()
    assert (bound > logits.view(BLOCKS, SIZE).amax(1) + 1e-3).any()
    close(tight, logits, 1e-5)


def check_a_further_token_never_lowers_quest(bugged):
    keys, queries = draw(1, 1, SIZE, DIM), draw(1, 2, 1, DIM, seed=1)
    grown = [
        quest_scores(bugged, queries, cartridge(keys[:, :, :count], block_size=count))
        for count in range(1, SIZE + 1)
    ]

    for few, more in pairwise(grown):
        assert (more >= few - 1e-6).all()


def check_dot_is_linear_and_cosine_ignores_lengths(bugged):
    """ALGORITHMS 4.5, 2."""
    keys, one, other = draw(1, 2, 20, DIM), draw(1, 4, 1, DIM, seed=1), draw(1, 4, 1, DIM, seed=2)
    document = cartridge(keys)
    both = mean_scores(bugged, 2 * one - 3 * other, document)
    apart = 2 * mean_scores(bugged, one, document) - 3 * mean_scores(bugged, other, document)
    close(both, apart)

    stretched = keys.clone()
    stretched[:, :, 4:8] *= 7
    cosines = mean_scores(bugged, one, document, "cosine")
    close(mean_scores(bugged, 9 * one, cartridge(stretched), "cosine"), cosines)
    dots = mean_scores(bugged, one, document)
    assert (mean_scores(bugged, one, cartridge(stretched)) - dots).abs().max() > 0.1


def check_one_token_blocks_rank_as_attention_logits(bugged):
    """ALGORITHMS 4.5, 3: and the softmax of the scores is the attention."""
    keys, queries = draw(1, 1, 12, DIM), draw(1, 1, 3, DIM, seed=1)
    document = cartridge(keys, block_size=1)
    attention = (queries[0, 0, -1] @ keys[0, 0].T / math.sqrt(DIM)).softmax(-1)

    for scores in (
        mean_scores(bugged, queries, document), cumulant_scores(bugged, queries, document)
    ):  # fmt: skip
        close(scores[0, 0].double().softmax(-1), attention)


def needle(strength, size=16, blocks=6, at=3):
    """F2: orthonormal noise, and in block 3 one key of c·q̂; head_dim 128."""
    basis = torch.linalg.qr(draw(128, 128))[0].T
    keys = basis[: size * blocks].clone()[None, None]
    keys[0, 0, at * size + 5] = strength * basis[-1]
    return cartridge(keys, block_size=size), basis[-1].expand(1, 1, 1, 128)


def check_a_planted_needle_is_found(bugged):
    """F2, in every scorer: the noise is orthogonal to q, so the mean's score is exactly c/16/√d."""
    document, queries = needle(strength=4.0)
    for similarity in ("dot", "cosine"):
        assert mean_scores(bugged, queries, document, similarity).argmax() == 3
    assert cumulant_scores(bugged, queries, document).argmax() == 3
    assert quest_scores(bugged, queries, document).argmax() == 3
    close(mean_scores(bugged, queries, document)[0, 0, 3], 4 / 16 / math.sqrt(128))


def diluted_needle(strength):
    """A needle of one channel in 16 tokens, against a block all of whose keys say 1/8 of q."""
    keys = torch.zeros(1, 1, 48, DIM, dtype=torch.float64)
    keys[0, 0, 21, 0] = strength  # block 1
    keys[0, 0, 32:48, 0] = 1 / 8  # block 2
    return cartridge(keys, block_size=16), torch.eye(DIM)[:1].double().expand(1, 1, 1, DIM)


def check_quest_sees_a_needle_where_the_mean_does_not(bugged):
    """ALGORITHMS 4.5, 4: the mean sees c/16, so it prefers the other block until c is 2."""
    for strength, by_mean in ((0.5, 2), (1.9, 2), (2.1, 1)):
        document, queries = diluted_needle(strength)
        assert quest_scores(bugged, queries, document).argmax() == 1
        assert mean_scores(bugged, queries, document).argmax() == by_mean


def check_the_cumulant_is_the_log_mass_to_second_order(bugged):
    """Two keys with logits a ± s: log mass log 2 + a + log cosh s, second order s²/2."""
    a, s = 0.7, 0.1
    keys = torch.tensor([[a - s, 9.0], [a + s, 9.0]], dtype=torch.float64) * math.sqrt(2)
    queries = torch.tensor([1.0, 0], dtype=torch.float64).expand(1, 1, 1, 2)
    score = cumulant_scores(bugged, queries, cartridge(keys[None, None], block_size=2))

    close(score, [[[math.log(2) + a + s * s / 2]]])
    close(score, [[[math.log(2) + a + math.log(math.cosh(s))]]], 1e-4)


def check_token_order_within_a_block_does_not_matter(bugged):
    """ALGORITHMS 4.5, 6; the control moves a token to another block."""
    keys, queries = draw(1, 2, 20, DIM), draw(1, 4, 2, DIM, seed=1)
    order, mixed = list(range(20)), list(range(20))
    order[4:8], mixed[3], mixed[4] = [6, 4, 7, 5], 4, 3
    for scores in (mean_scores, cumulant_scores, quest_scores):
        plain = scores(bugged, queries, cartridge(keys))
        close(scores(bugged, queries, cartridge(keys[:, :, order])), plain)
        assert (scores(bugged, queries, cartridge(keys[:, :, mixed])) - plain).abs().max() > 1e-3


def check_equal_blocks_tie(bugged):
    """Whatever their place: a float32 product may sum its edge columns in another order."""
    block, queries = draw(3, 2, SIZE, 64), draw(3, 6, 5, 64, seed=1)
    document = cartridge(block.repeat(1, 1, 37, 1))
    for scores in (mean_scores, cumulant_scores, quest_scores):
        got = scores(bugged, queries, document, tokens="mean")
        assert got.dtype == torch.float32
        assert (got == got[..., :1]).all()


def asked(bugged, source, tokens="last", split=None, token_ids=QUESTION.token_ids):
    """Queries of a question, and the blocks it was shown, on a document of six blocks."""
    model = FakeModel.random()
    shown = []

    class Watched(FakeProbe):
        def forward(self, token_ids, *, visible, **others):
            shown.extend(visible[0].nonzero().flatten().tolist())
            return super().forward(token_ids, visible=visible, **others)

    document = model.cartridge(range(20, 44))
    split = split or Split.pin(6, anchor=1, recent=2, mid_budget=1)
    params = mean.Params(source=source, pool_tokens=tokens)
    probe = Watched(model, document, texts=())
    queries = bugged.asking.question_queries(Query(token_ids), split, probe, 6, params)
    return queries, shown


def check_each_source_shows_its_blocks(bugged):
    """ALGORITHMS 4.2: layer 0 alone without context; the pins; everything."""
    for source, layers, blocks in (
        ("layer0", 1, []), ("pinned", 3, [0, 4, 5]), ("full", 3, [0, 1, 2, 3, 4, 5])
    ):  # fmt: skip
        queries, shown = asked(bugged, source)
        assert queries.shape == (layers, 4, 1, 8)
        assert shown == blocks
        assert asked(bugged, source, "mean")[0].shape == (layers, 4, 3, 8)
        close(asked(bugged, source, "max")[0][:, :, -1:], queries)


def check_queries_are_the_model_s_after_rope(bugged):
    """At the positions after the document, whatever is shown."""
    model = FakeModel.random()
    document = model.cartridge(range(20, 44))
    past = document.keys(), document.values()
    for source, blocks in (("full", range(6)), ("pinned", (0, 4, 5)), ("layer0", (2,))):
        visible = torch.zeros(24, dtype=torch.bool)
        visible[document.layout.tokens_of(blocks)] = True
        trace = model.run(QUESTION.token_ids, range(24, 27), past, visible)
        wanted = trace.queries[:1] if source == "layer0" else trace.queries
        close(asked(bugged, source, "mean")[0], wanted)
        close(asked(bugged, source)[0], wanted[:, :, -1:])


RIGHT = SimpleNamespace(affinity=affinity, asking=asking, summaries=summaries)
CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(RIGHT)


PLANTED = {
    "dot: the sign": (
        affinity,
        "queries @ means.mT / math.sqrt",
        "-queries @ means.mT / math.sqrt",
    ),
    "dot: no 1/√d": (affinity, " / math.sqrt(queries.shape[-1])", ""),
    "dot: 1/d": (affinity, "math.sqrt(queries.shape[-1])", "queries.shape[-1]"),
    "cosine: keys not normalised": (affinity, "normalize(means, dim=-1).mT", "means.mT"),
    "cosine: queries not normalised": (affinity, "normalize(queries, dim=-1) @", "queries @"),
    "cumulant: variance taken off": (affinity, "+ spread / 2", "- spread / 2"),
    "cumulant: no half": (affinity, "+ spread / 2", "+ spread"),
    "cumulant: |q| for q²": (affinity, "queries.square() @", "queries.abs() @"),
    "cumulant: spread over √d": (
        affinity,
        "variances.mT / queries.shape[-1]",
        "variances.mT / queries.shape[-1] ** 0.5",
    ),
    "cumulant: no log B": (affinity, "math.log(block_size) + ", ""),
    "cumulant: unbiased variance": (summaries, "correction=0", "correction=1"),
    "quest: minimum for maximum": (
        affinity,
        "queries.clamp(min=0) @ greatest.mT + queries.clamp(max=0) @ least.mT",
        "queries.clamp(min=0) @ least.mT + queries.clamp(max=0) @ greatest.mT",
    ),
    "quest: only the greatest values": (
        affinity,
        "queries.clamp(max=0) @ least",
        "0 * queries @ least",
    ),
    "quest: |q| with the greatest": (
        affinity,
        "queries.clamp(max=0) @ least.mT",
        "-queries.clamp(max=0) @ greatest.mT",
    ),
    "quest: mean over a group": (affinity, 'pool_tokens, "max")', 'pool_tokens, "mean")'),
    "quest: mean for minimum": (summaries, "keys.amin(2)", "keys.mean(2)"),
    "quest: a median for the maximum": (summaries, "keys.amax(2)", "keys.median(2).values"),
    "mean: a sum": (summaries, "keys.double().mean(2)", "keys.double().sum(2)"),
    "summaries of values": (summaries, "cartridge.kv[:, layer, 0]", "cartridge.kv[:, layer, 1]"),
    "every layer is the first": (summaries, "cartridge.kv[:, layer, 0]", "cartridge.kv[:, 0, 0]"),
    "heads interleaved for contiguous": (
        affinity,
        "asked.double().unflatten(0, (len(kept[0]), -1))",
        "asked.double().unflatten(0, (-1, len(kept[0]))).transpose(0, 1)",
    ),
    "queries averaged before the product": (
        affinity,
        "asked.double().unflatten(0, (len(kept[0]), -1))",
        "asked.double().unflatten(0, (len(kept[0]), -1)).mean(1, keepdim=True)",
    ),
    "tokens pooled after heads": (
        affinity,
        "POOL[pool_tokens](per_token, 2)",
        "POOL[pool_tokens](POOL[pool_heads](per_token, 1)[:, None], 2)",
    ),
    "the first token for the last": (affinity, "select(axis, -1)", "select(axis, 0)"),
    "mean for max": (affinity, "scores.amax(axis)", "scores.mean(axis)"),
    "max for mean": (affinity, "scores.mean(axis)", "scores.amax(axis)"),
    "scores left in float64": (affinity, "(per_head, 1).float()", "(per_head, 1)"),
    "pinned: without the recent blocks": (
        asking,
        "[*split.anchor, *split.recent]",
        "[*split.anchor]",
    ),
    "pinned: the mid blocks": (asking, "[*split.anchor, *split.recent]", "[*split.mid]"),
    "full: only the pins": (
        asking,
        "visible[:] = True",
        "visible[0, [*split.anchor, *split.recent]] = True",
    ),
    "layer0: every layer": (asking, "read.queries[0, :1] if", "read.queries[0] if"),
    "layer0: the last layer": (asking, "read.queries[0, :1] if", "read.queries[0, -1:] if"),
    "only the last token, always": (
        asking,
        'if params.pool_tokens == "last" else None',
        "if params.pool_tokens else None",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    module, right, wrong = PLANTED[fault]
    part, mutant = module.__name__.split(".")[-1], plant_bug(right, wrong, module)

    assert is_noticed(CHECKS.values(), SimpleNamespace(**vars(RIGHT) | {part: mutant}))
