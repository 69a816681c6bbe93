"""Repair against a forward written by hand: the six tests of ALGORITHMS 9.6, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from attrs import evolve

from kri_core.errors import ArtifactError, ConfigError, EngineError
from kri_core.repairing import RepairParams, most_deviating, narrowed
from kri_core.substrate.hf import answer, cutting, load_prefix, refreshing
from kri_core.substrate.hf import repair as repair_each
from kri_core.substrate.hf.repair import Wanted
from kri_core.testing.tiny import random_tokens, tiny, tiny_cartridge
from kri_core.types import RepairPlan

REPAIR = sys.modules["kri_core.substrate.hf.repair"]  # the module; the package has the function
BLOCKS = (0, 2, 5)  # of six, so 24 tokens, and the tail of two
KEPT = [*range(8), *range(16, 24), *range(40, 48), 48, 49]
KEPT_ROWS = list(range(len(KEPT)))
QUESTION = tuple(random_tokens(5, seed=1))


@pytest.fixture(scope="module", params=["Llama", "Qwen3"])
def model(request):
    """Four layers, so that a gradual repair narrows twice."""
    return tiny(request.param, num_hidden_layers=4)


@pytest.fixture(scope="module")
def cartridge(model):
    return tiny_cartridge(model)


def top(count):
    """A plan: the `count` tokens of largest deviation."""
    return lambda deviation: RepairPlan(most_deviating(deviation, count), len(deviation))


def fixed(*tokens):
    return lambda deviation: RepairPlan(tokens, len(deviation))


def repair(model, cartridge, prefix, plan, params, question=()):
    """One request alone."""
    (made,) = repair_each(model, cartridge, [Wanted(prefix, plan, question)], params)
    return made


def noisy(prefix, tokens, layers, scale=1.0):
    """Stored KV with noise on some rows of some layers."""
    draw = torch.Generator().manual_seed(3)

    def side(tensors):
        made = [tensor.clone() for tensor in tensors]
        for layer in layers:
            rows = made[layer][:, list(tokens)]
            made[layer][:, list(tokens)] = rows + scale * torch.randn(rows.shape, generator=draw)
        return tuple(made)

    return evolve(prefix, keys=side(prefix.keys), values=side(prefix.values))


# A forward by hand, one row at a time


def naive(model, token_ids, positions, stored, plan, params, question=(), after=50):
    """Keys and values per layer after a repair, and the deviation; no part of the code tested."""
    parts, lead, count = model.model.model, len(question), len(positions)
    hidden = dict(enumerate(parts.embed_tokens(torch.tensor([*question, *token_ids]))))
    where = [*range(after, after + lead), *positions]
    # What a row sees: the question by rows, a kept token all the question and what stands before.
    seen = {row: list(range(row + 1)) for row in range(lead)}
    for row in range(count):
        before = [lead + j for j in range(count) if positions[j] <= positions[row]]
        seen[lead + row] = [*range(lead), *before]
    keys, values = ([side.clone() for side in part] for part in stored)
    alive, fresh_below, deviation, first = list(range(count)), [], None, None
    for number, layer in enumerate(parts.layers):
        rows = [*range(lead), *(lead + token for token in alive)]
        qkv = {row: project(parts, layer, hidden[row], where[row]) for row in rows}
        distance = torch.tensor(
            [distance_of(qkv[lead + token], stored, number, token, params) for token in alive]
        )
        if number <= params.check_layer:
            fresh_below.append(qkv)
            visible = {row: (qkv[row][1], qkv[row][2]) for row in rows}
        else:
            for token in alive:
                keys[number][:, token], values[number][:, token] = qkv[lead + token][1:]
            visible = {row: qkv[row][1:] for row in range(lead)} | {
                lead + t: (keys[number][:, t], values[number][:, t]) for t in range(count)
            }
        if number == params.check_layer:
            deviation, alive = distance, list(plan(distance).tokens)
            first = alive
            for below, known in enumerate(fresh_below):
                for token in alive:
                    keys[below][:, token], values[below][:, token] = known[lead + token][1:]
        elif number > params.check_layer and params.mode == "gradual":
            steps = len(parts.layers) - params.check_layer - 2
            step = number - params.check_layer
            if step <= steps:
                left = len(first) * (1.3 - (1.3 - 0.85) * step / steps) / 1.3
                order = sorted(range(len(alive)), key=lambda i: (-float(distance[i]), i))
                alive = sorted(alive[i] for i in order[: max(1, -int(-left // 1))])
        hidden = {row: finish(layer, hidden[row], qkv[row][0], visible, seen[row]) for row in rows}
    return keys, values, deviation


def project(parts, layer, hidden, position):
    """Post-RoPE query and key, and value, of one token, [head, head_dim]."""
    attention, normed = layer.self_attn, layer.input_layernorm(hidden)
    query, key, value = (
        part(normed).view(-1, 8) for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    angle = position * parts.rotary_emb.inv_freq

    def turned(x):
        left, right = x[:, :4], x[:, 4:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    return turned(query), turned(key), value


def distance_of(qkv, stored, layer, token, params):
    total = 0.0
    for name, fresh, old in zip("kv", qkv[1:], stored, strict=True):
        if name in params.deviation:
            total += float((fresh - old[layer][:, token]).square().sum())
    return total


def finish(layer, hidden, query, visible, seen):
    """One token's hidden state after a layer, over the places it sees."""
    heads = []
    for head in range(4):
        keys = torch.stack([visible[place][0][head // 2] for place in seen])
        values = torch.stack([visible[place][1][head // 2] for place in seen])
        heads.append((keys @ query[head] / 8**0.5).softmax(0) @ values)
    hidden = hidden + layer.self_attn.o_proj(torch.cat(heads))
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


CASES = [
    RepairParams(),
    RepairParams(deviation="v"),
    RepairParams(deviation="kv", check_layer=2),
    RepairParams(check_layer=3),
    RepairParams(check_layer=0, mode="gradual"),
    RepairParams(mode="gradual", deviation="kv"),
    RepairParams(reference="query_first"),
    RepairParams(reference="query_first", mode="gradual", check_layer=0),
]


def check_against_naive(model, cartridge, params, count=9):
    """Stored KV is noisy, so that nothing is right by having been right before."""
    stored = noisy(load_prefix(model, cartridge, BLOCKS), KEPT_ROWS, range(4), scale=0.5)
    got, report = repair(model, cartridge, stored, top(count), params, QUESTION)
    asked = QUESTION if params.reference == "query_first" else ()
    tokens = [cartridge.token_ids[token] for token in KEPT]
    with torch.no_grad():
        keys, values, deviation = naive(
            model, tokens, KEPT, (stored.keys, stored.values), top(count), params, asked
        )
    for layer in range(4):
        torch.testing.assert_close(got.keys[layer], keys[layer], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.values[layer], values[layer], rtol=1e-5, atol=1e-5)
    assert report.refreshed == top(count)(deviation).tokens
    assert report.deviation_sum == pytest.approx(float(deviation.sum()), rel=1e-4)
    assert report.deviation_max == pytest.approx(float(deviation.max()), rel=1e-4)
    assert report.deviation_mean == pytest.approx(float(deviation.mean()), rel=1e-4)
    captured = float(deviation[list(report.refreshed)].sum() / deviation.sum())
    assert report.share_captured == pytest.approx(captured, rel=1e-4)


@pytest.mark.parametrize("params", CASES, ids=str)
def test_a_repair_is_the_forward_by_hand(model, cartridge, params):
    check_against_naive(model, cartridge, params)


def test_one_token_is_refreshed_like_any_other(model, cartridge):
    check_against_naive(model, cartridge, RepairParams(), count=1)


def test_few_rows_at_a_time_are_the_same(model, cartridge, monkeypatch):
    monkeypatch.setitem(refreshing.SCORE_BYTES, "cpu", 1)
    check_against_naive(model, cartridge, RepairParams(reference="query_first"))


# 9.6


def test_everything_refreshed_by_the_whole_document_is_a_prefill(model, cartridge):
    """9.6, 1."""
    stored = noisy(load_prefix(model, cartridge, range(6)), list(range(50)), range(4))
    whole, _ = repair(model, cartridge, stored, top(50), RepairParams(reference="full"))
    honest = load_prefix(model, cartridge, range(6))
    for got, wanted in zip(whole.keys + whole.values, honest.keys + honest.values, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)

    dense = answer(model, cartridge, range(6), QUESTION, 4)
    again = answer(model, cartridge, range(6), QUESTION, 4, repaired=whole)
    torch.testing.assert_close(again.question_logprobs, dense.question_logprobs, atol=1e-5, rtol=0)
    assert again.token_ids == dense.token_ids
    spoilt = answer(model, cartridge, range(6), QUESTION, 4, repaired=stored)
    assert (spoilt.question_logprobs - dense.question_logprobs).abs().max() > 1e-2


@pytest.mark.parametrize("mode", ["single", "gradual"])
def test_some_refreshed_by_the_whole_document_are_its_rows(model, cartridge, mode):
    honest = load_prefix(model, cartridge, BLOCKS)
    stored = noisy(honest, [3, 9], range(4))
    params = RepairParams(reference="full", mode=mode)
    got, report = repair(model, cartridge, stored, top(2), params)

    assert report.refreshed == (3, 9)
    assert torch.equal(got.keys[1], honest.keys[1])
    rows_of_last = [3, 9] if mode == "single" else [3, 9][: narrowed(2, 2, 2)]
    assert (got.keys[3] != stored.keys[3]).any(-1).any(0).sum() == len(rows_of_last)


def test_the_routed_reference_is_a_forward_of_the_kept_tokens(model, cartridge, run_eager):
    """By plain transformers, eager, under a mask built by hand."""
    tokens = [cartridge.token_ids[token] for token in KEPT]
    causal = torch.ones(26, 26, dtype=torch.bool).tril()
    mask = torch.zeros(1, 1, 26, 26).masked_fill(~causal, torch.finfo(torch.float32).min)
    out = run_eager(model, tokens, mask, position_ids=torch.tensor([KEPT]), use_cache=True)
    cache = getattr(out, "cache", None) or out.past_key_values
    got, _ = repair(
        model, cartridge, load_prefix(model, cartridge, BLOCKS), top(26), RepairParams()
    )

    for layer in range(4):
        wanted = cache.layers[layer]
        torch.testing.assert_close(got.keys[layer], wanted.keys[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.values[layer], wanted.values[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [BLOCKS, range(6)])
def test_an_honest_cartridge_does_not_deviate_from_its_document(model, cartridge, blocks):
    """9.6, 2."""
    stored = load_prefix(model, cartridge, blocks)
    params = RepairParams(reference="full", deviation="kv", check_layer=3)
    got, report = repair(model, cartridge, stored, top(7), params)

    assert report.deviation_max < 1e-5
    for one, other in zip(got.keys + got.values, stored.keys + stored.values, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_all_blocks_kept_do_not_deviate_from_the_routed_reference(model, cartridge):
    stored = load_prefix(model, cartridge, range(6))
    _, report = repair(model, cartridge, stored, top(7), RepairParams(check_layer=3))
    assert report.deviation_max < 1e-5


def test_fewer_blocks_deviate_in_deeper_layers_only(model, cartridge):
    stored = load_prefix(model, cartridge, BLOCKS)
    _, shallow = repair(model, cartridge, stored, top(7), RepairParams(check_layer=0))
    _, deep = repair(model, cartridge, stored, top(7), RepairParams(check_layer=1))

    assert shallow.deviation_max < 1e-5
    assert deep.deviation_max > 1e-2


def test_the_question_first_changes_what_is_fresh(model, cartridge):
    """The same tokens, another question: only `query_first` notices."""
    stored = load_prefix(model, cartridge, BLOCKS)

    def keys(reference, question):
        params = RepairParams(reference=reference)
        return repair(model, cartridge, stored, top(26), params, question)[0].keys[3]

    other = QUESTION[::-1]
    assert torch.equal(keys("routed", QUESTION), keys("routed", other))
    assert (keys("query_first", QUESTION) - keys("query_first", other)).abs().max() > 1e-2


def test_turning_both_sides_alike_leaves_the_deviation(model, cartridge):
    """9.6, 3: to the same new positions; turning is orthogonal."""
    rope, stored = model.anatomy.rotary.rope, load_prefix(model, cartridge, BLOCKS)
    fresh = noisy(stored, KEPT_ROWS, range(4))
    moved = torch.arange(26) * 3 - 20
    distance = refreshing.squared_distance(fresh.keys[2], stored.keys[2])
    turned = refreshing.squared_distance(
        rope.turn(fresh.keys[2], moved), rope.turn(stored.keys[2], moved)
    )
    torch.testing.assert_close(turned, distance, rtol=1e-5, atol=1e-5)
    one_side = refreshing.squared_distance(fresh.keys[2], rope.turn(stored.keys[2], moved))
    assert (one_side - distance).abs().max() > 1e-1


def test_a_chunk_moved_to_other_positions(model, cartridge, run_eager):
    """9.6, 4: there and back is where it was; in layer 0 its moved keys are fresh ones."""
    rope, stored = model.anatomy.rotary.rope, load_prefix(model, cartridge, range(6))
    by = torch.full((50,), 13)
    back = rope.turn(rope.turn(stored.keys[2], by), -by)
    torch.testing.assert_close(back, stored.keys[2], rtol=1e-5, atol=1e-5)

    there = torch.arange(13, 63)[None]
    out = run_eager(model, cartridge.token_ids, position_ids=there, use_cache=True)
    fresh = (getattr(out, "cache", None) or out.past_key_values).layers[0]
    moved = rope.turn(stored.keys[0], by)
    assert refreshing.squared_distance(fresh.keys[0], moved).max() < 1e-5
    assert refreshing.squared_distance(fresh.values[0], stored.values[0]).max() < 1e-5
    assert refreshing.squared_distance(fresh.keys[0], stored.keys[0]).max() > 1e-1


@pytest.mark.parametrize("reference", ["full", "routed"])
def test_the_rows_that_were_spoilt_are_the_ones_refreshed(model, cartridge, reference):
    """9.6, 5: all blocks are kept, so both references are what is stored elsewhere."""
    before = cartridge.kv.clone(), cartridge.tail.clone()
    spoilt = [4, 17, 18, 33, 49]
    stored = noisy(load_prefix(model, cartridge, range(6)), spoilt, [1])
    untouched = evolve(stored, keys=tuple(k.clone() for k in stored.keys))
    got, report = repair(model, cartridge, stored, top(5), RepairParams(reference=reference))

    assert report.refreshed == tuple(spoilt)
    assert report.share_captured > 0.999
    others = [token for token in range(50) if token not in spoilt]
    for new, old in zip(got.keys + got.values, stored.keys + stored.values, strict=True):
        assert torch.equal(new[:, others], old[:, others])
    honest = load_prefix(model, cartridge, range(6))
    torch.testing.assert_close(got.keys[1], honest.keys[1], rtol=0, atol=1e-5)
    for old, kept in zip(stored.keys, untouched.keys, strict=True):
        assert torch.equal(old, kept)  # what was given is not changed
    assert torch.equal(cartridge.kv, before[0])
    assert torch.equal(cartridge.tail, before[1])


def test_a_token_changes_no_refreshed_row_before_it(model, cartridge):
    """9.6, 6: neither by its stored KV nor by what it is."""
    stored, plan = load_prefix(model, cartridge, BLOCKS), fixed(1, 8, 9, 20, 25)
    base, _ = repair(model, cartridge, stored, plan, RepairParams())
    for token in (0, 10, 15, 24):
        other_id = list(cartridge.token_ids)
        other_id[KEPT[token]] = (other_id[KEPT[token]] + 1) % 256
        renamed = evolve(cartridge, token_ids=tuple(other_id))
        for changed, document in ((noisy(stored, [token], range(4)), cartridge), (stored, renamed)):
            got, _ = repair(model, document, changed, plan, RepairParams())
            before = [row for row in (1, 8, 9, 20, 25) if row < token]
            after = [row for row in (1, 8, 9, 20, 25) if row > token]
            for new, old in zip(got.keys + got.values, base.keys + base.values, strict=True):
                assert torch.equal(new[:, before], old[:, before])
            if after:
                assert not torch.equal(got.keys[3][:, after], base.keys[3][:, after])


def test_no_layer_above_the_check_layer_computes_more_than_the_plan(model, cartridge):
    """The cost of ALGORITHMS 9.5, counted by the rows every MLP is given."""
    rows = []
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda _m, args: rows.append(args[0].shape[1]))
        for layer in model.anatomy.layers
    ]
    stored = load_prefix(model, cartridge, BLOCKS)
    try:
        repair(model, cartridge, stored, top(7), RepairParams())
        repair(model, cartridge, stored, fixed(), RepairParams())
        repair(model, cartridge, stored, top(13), RepairParams(mode="gradual", check_layer=0))
    finally:
        for hook in hooks:
            hook.remove()
    assert rows == [26, 26, 7, 7, 26, 26, 26, 13, 11, 9]


# CASES 37 and 38


def test_an_empty_plan_changes_nothing_and_still_measures(model, cartridge):
    stored = load_prefix(model, cartridge, BLOCKS)
    got, report = repair(model, cartridge, stored, fixed(), RepairParams())

    for new, old in zip(got.keys + got.values, stored.keys + stored.values, strict=True):
        assert torch.equal(new, old)
    assert (report.refreshed, report.num_kept_tokens, report.share_captured) == ((), 26, 0.0)
    assert report.deviation_max > 1e-2


def test_no_kept_token(model):
    """Eight tokens are one block and no tail: nothing is left if that is not kept."""
    cartridge = tiny_cartridge(model, num_tokens=8)
    stored = load_prefix(model, cartridge, ())
    _, report = repair(model, cartridge, stored, top(5), RepairParams())

    assert (report.refreshed, report.num_kept_tokens, report.deviation_mean) == ((), 0, 0.0)


def test_gradual_counts():
    assert [narrowed(13, step, 4) for step in range(5)] == [13, 12, 11, 10, 9]
    assert [narrowed(1, step, 2) for step in range(3)] == [1, 1, 1]
    assert narrowed(0, 1, 2) == 0


def test_a_half_precision_model(model):
    """Fresh rows are as the model computes them; deviation is float32."""
    half = tiny("Llama", dtype=torch.bfloat16)
    cartridge = tiny_cartridge(half)
    stored = load_prefix(half, cartridge, BLOCKS)
    got, report = repair(half, cartridge, stored, top(6), RepairParams(reference="full"))
    assert report.deviation_max == 0
    got, report = repair(half, cartridge, stored, top(6), RepairParams())
    assert got.keys[2].dtype == torch.bfloat16
    assert 0 < report.share_captured < 1


@pytest.mark.parametrize("kind", [("Phi", {"partial_rotary_factor": 0.5}), ("Cohere", {})], ids=str)
def test_other_kinds_of_model(kind, run_eager):
    """Partial and interleaved RoPE, parallel MLPs, scaled embeddings: the model's own forward."""
    model = tiny(kind[0], **kind[1])
    cartridge = tiny_cartridge(model)
    stored = load_prefix(model, cartridge, BLOCKS)
    spoilt = noisy(stored, [5, 14], range(3))
    got, report = repair(model, cartridge, stored, top(26), RepairParams())
    again, _ = repair(model, cartridge, spoilt, fixed(*range(26)), RepairParams())
    part, _ = repair(model, cartridge, got, fixed(3, 11, 25), RepairParams())

    assert report.num_kept_tokens == 26
    for one, other, third in zip(got.keys, again.keys, part.keys, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one, third, rtol=1e-5, atol=1e-5)


# Refusals


def test_a_cartridge_that_does_not_know_its_tokens_is_refused(model, cartridge):
    foreign = evolve(cartridge, token_ids=())
    stored = load_prefix(model, foreign, BLOCKS)
    for force in (False, True):
        with pytest.raises(ConfigError, match="'tiny' does not know its tokens, so nothing fresh"):
            repair(model, foreign, stored, top(3), RepairParams(force_reference=force))


def test_a_trained_cartridge_is_refused_unless_insisted(model, cartridge):
    trained = evolve(cartridge, trained=True)
    stored = load_prefix(model, trained, BLOCKS)
    with pytest.raises(ConfigError, match=r"is trained, and a repair would undo that.*force_refer"):
        repair(model, trained, stored, top(3), RepairParams())
    _, report = repair(model, trained, stored, top(3), RepairParams(force_reference=True))
    assert len(report.refreshed) == 3


def test_a_check_layer_that_the_model_lacks(model, cartridge):
    stored = load_prefix(model, cartridge, BLOCKS)
    with pytest.raises(
        ConfigError, match=r"check_layer=4 is not a layer of tiny-.*; give one of 0"
    ):
        repair(model, cartridge, stored, top(3), RepairParams(check_layer=4))


def test_a_cartridge_of_another_model(model, cartridge):
    other = tiny("Qwen2")
    stored = load_prefix(model, cartridge, BLOCKS)
    with pytest.raises(ArtifactError, match="model"):
        repair(other, cartridge, stored, top(3), RepairParams())


def test_a_model_whose_layers_take_positions_otherwise(model, cartridge, monkeypatch):
    """A row that was not cut out is noticed, even a single one that broadcasting would hide."""
    monkeypatch.setattr(cutting, "PER_TOKEN", ())
    stored = load_prefix(model, cartridge, BLOCKS)
    with pytest.raises(EngineError, match="layer 2 computed 26 tokens where 1 were left"):
        repair(model, cartridge, stored, fixed(4), RepairParams())


# Several requests in one forward


def requests(model, cartridge):
    """Other blocks, plans of other lengths, one of them empty; questions of other lengths."""
    stored = [
        noisy(load_prefix(model, cartridge, blocks), range(8 * len(blocks) + 2), range(4), 0.5)
        for blocks in ((0, 2, 5), (1,), (3, 4), (0, 1, 2, 3, 4, 5))
    ]
    plans = (top(9), top(3), fixed(), top(50))
    questions = [tuple(random_tokens(length, seed=length)) for length in (5, 1, 3, 2)]
    return list(map(Wanted, stored, plans, questions))


def check_together(model, cartridge, params):
    wanted = requests(model, cartridge)
    found = repair_each(model, cartridge, wanted, params)
    for one, (got, report) in zip(wanted, found, strict=True):
        layout, blocks = cartridge.layout, one.prefix.blocks
        kept = [*layout.tokens_of(blocks), *layout.tail]
        asked = one.question if params.reference == "query_first" else ()
        tokens = [cartridge.token_ids[token] for token in kept]
        stored = (one.prefix.keys, one.prefix.values)
        with torch.no_grad():
            keys, values, deviation = naive(model, tokens, kept, stored, one.plan, params, asked)
        assert report.refreshed == one.plan(deviation).tokens
        for layer in range(4):
            torch.testing.assert_close(got.keys[layer], keys[layer], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(got.values[layer], values[layer], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limit", [4096, 60, 1])
@pytest.mark.parametrize("params", CASES, ids=str)
def test_several_requests_are_each_what_a_forward_by_hand_gives(
    model, cartridge, params, limit, monkeypatch
):
    monkeypatch.setattr(REPAIR, "MAX_TOKENS", limit)
    check_together(model, cartridge, params)


def test_requests_share_the_prefill_of_a_full_reference(model, cartridge, monkeypatch):
    """One prefill of 50 tokens, whatever is repaired; the spoilt rows are as they were built."""
    prefill, calls = REPAIR.prefill, []
    monkeypatch.setattr(REPAIR, "prefill", lambda *of: calls.append(1) or prefill(*of))
    blocks = ((0, 2, 5), (1,))
    stored = [load_prefix(model, cartridge, some) for some in blocks]
    wanted = [Wanted(noisy(one, [2, 5], range(4)), fixed(2, 5)) for one in stored]

    found = repair_each(model, cartridge, wanted, RepairParams(reference="full"))

    assert len(calls) == 1
    for (got, _), right in zip(found, stored, strict=True):
        for layer in range(4):
            torch.testing.assert_close(got.keys[layer], right.keys[layer], rtol=1e-5, atol=1e-5)


def test_a_forward_holds_so_many_tokens_at_most(model, cartridge, monkeypatch):
    """26, 10, 18 and 50 kept tokens: at 36 the first two go together, and 50 alone."""
    run, lengths = type(model).run, []

    def counted(self, token_ids, positions, **options):
        lengths.append(token_ids.shape[1])
        return run(self, token_ids, positions, **options)

    monkeypatch.setattr(type(model), "run", counted)
    monkeypatch.setattr(REPAIR, "MAX_TOKENS", 36)
    repair_each(model, cartridge, requests(model, cartridge), RepairParams())
    assert lengths == [36, 18, 50]


# Planted bugs: each mutation of refreshing.py and cutting.py must be seen by the forward by hand

MUTATIONS = {
    "the mask goes by row order, aligned at the last token": (
        "self.order <= self.order[places][:, None]",
        "torch.ones(len(places), len(self.order)).tril(len(self.order) - len(places)).bool()",
    ),
    "later layers see only refreshed rows": (
        "self.order <= self.order[places][:, None]",
        "(self.order <= self.order[places][:, None]) & torch.isin(self.order, self.order[places])",
    ),
    "later layers attend to stored keys, not to the blended ones": (
        "self.refresh.keys[layer]], 1)",
        "self.refresh.stored.keys[layer]], 1)",
    ),
    "the check layer is blended before its plan": (
        "if layer > self.refresh.params.check_layer:",
        "if layer >= self.refresh.params.check_layer:",
    ),
    "all rows are written up to the check layer": (
        "self._write(below, tokens_at(pair, self.rows[-1]))",
        "self.keys[below], self.values[below] = pair",
    ),
    "the check layer is not written": (
        "enumerate((*self.early, fresh))",
        "enumerate(self.early)",
    ),
    "the root of the distance": (
        ".square().sum((0, 2))",
        ".square().sum((0, 2)).sqrt()",
    ),
    "values are measured where keys were asked for": (
        '{"k": (0,), "v": (1,)',
        '{"k": (1,), "v": (1,)',
    ),
    "hidden states are cut at the tokens' places": (
        "torch.searchsorted(old, new) for old, new in",
        "torch.arange(len(new)) for _old, new in",
    ),
    "positions are not cut at the tokens' places": (
        "places = _joined(wanted, ",
        "places = _joined([torch.arange(len(new)) for new in wanted], ",
    ),
    "a request is cut at the places of the one before it": (
        "[start + part for",
        "[part for",
    ),
    "the gradual repair ranks by the smallest": (
        "most_deviating(deviation, count)",
        "most_deviating(-deviation, count)",
    ),
    "the gradual repair never narrows": (
        "if step <= steps:",
        "if False:",
    ),
    "unscaled attention": (
        "query.to(dtype) * scaling",
        "query.to(dtype)",
    ),
}


def check_planted(model, cartridge):
    for params in (RepairParams(), RepairParams(mode="gradual", check_layer=0)):
        check_against_naive(model, cartridge, params)
    check_together(model, cartridge, RepairParams())


def use(monkeypatch, source):
    """Repair with this text in the place of refreshing.py or cutting.py."""
    mutant = ModuleType("mutant")
    monkeypatch.setitem(sys.modules, "mutant", mutant)  # attrs looks for its classes' module
    exec(compile(source, "mutant", "exec"), vars(mutant))
    for name in ("Refresh", "BlendedAttention", "only_rows_in_force", "tokens_at"):
        if hasattr(mutant, name):
            monkeypatch.setattr(REPAIR, name, getattr(mutant, name))


SOURCES = [Path(module.__file__).read_text() for module in (refreshing, cutting)]


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_seen(model, cartridge, monkeypatch, bug):
    right, wrong = MUTATIONS[bug]
    (source,) = [text for text in SOURCES if right in text]
    assert source.count(right) == 1
    use(monkeypatch, source.replace(right, wrong))

    with pytest.raises((AssertionError, EngineError, RuntimeError)):
        check_planted(model, cartridge)


@pytest.mark.parametrize("source", SOURCES, ids=["refreshing", "cutting"])
def test_without_a_bug_the_same_way_passes(model, cartridge, monkeypatch, source):
    use(monkeypatch, source)
    check_planted(model, cartridge)
