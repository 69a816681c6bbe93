"""Both removals against plain transformers: no probe, no batch, one forward per block."""

import inspect

import pytest
import torch
from attrs import evolve
from kri_plugin_d import closed_form, direct, energy, kl, kv_sum
from kri_plugin_d.leave_one_out import leave_one_out

from kri_core import ConfigError, ProbeText

transformers = pytest.importorskip("transformers")

from kri_core.substrate.hf import HfProbe  # noqa: E402 - they need transformers
from kri_core.testing.tiny import tiny, tiny_cartridge, tiny_transformers  # noqa: E402

TEXTS = (ProbeText("a", (65, 9, 200, 7, 11)), ProbeText("b", (3, 80)))
FAMILIES = ["Llama", "Qwen2", "Qwen3"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


def document(family, num_tokens=26):
    """By default six blocks of 4 and a tail of 2."""
    model = tiny(family)
    return model, tiny_cartridge(model, num_tokens=num_tokens, block_size=4)


def probe(model, cartridge, batch=16, **options):
    return HfProbe(model, cartridge, TEXTS, batch, **options)


def run(model, token_ids, positions, allowed, past=None):
    """Eager attention under a mask bool [token, key token]: hidden [layer, token, dim], logits."""
    streams = []
    hooks = [
        layer.register_forward_hook(
            lambda _module, _inputs, output: streams.append(
                output[0] if isinstance(output, tuple) else output
            )
        )
        for layer in model.model.layers
    ]
    taken = inspect.signature(model.forward).parameters
    cache = "cache" if "cache" in taken else "past_key_values"
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([token_ids]),
            position_ids=torch.tensor([positions]),
            attention_mask=torch.zeros(allowed.shape).masked_fill(~allowed, -1e30)[None, None],
            **({} if past is None else {cache: past}),
        ).logits
    for hook in hooks:
        hook.remove()
    return torch.cat(streams), logits[0]


def naive(family, cartridge, text, removal):
    """Distance and relative distance [block, layer], KL [block]."""
    model = tiny_transformers(family, attn_implementation="eager")
    layout, ids = cartridge.layout, list(text.token_ids)
    end, count = layout.num_tokens, len(ids)
    after = list(range(end, end + count))

    def masked(kept):
        past = transformers.DynamicCache()
        for layer in range(layout.num_layers):
            both = [
                torch.cat([side[layer], tail[layer]], 1).unsqueeze(0)
                for side, tail in (
                    (cartridge.keys(), cartridge.tail[:, 0]),
                    (cartridge.values(), cartridge.tail[:, 1]),
                )
            ]
            past.update(*both, layer)
        allowed = torch.zeros(count, end + count, dtype=torch.bool)
        allowed[:, kept] = True
        allowed[:, end:] = torch.ones(count, count, dtype=torch.bool).tril()
        return run(model, ids, after, allowed, past)

    def prefilled(kept):
        tokens = [cartridge.token_ids[token] for token in kept] + ids
        causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        hidden, logits = run(model, tokens, kept + after, causal)
        return hidden[:, -count:], logits[-count:]

    forward = masked if removal == "mask" else prefilled
    everything = list(range(end))
    hidden, logits = forward(everything)
    log_p = logits.double().log_softmax(-1)
    rows = []
    for block in range(layout.num_blocks):
        inside = set(layout.tokens_of([block]))
        without, its_logits = forward([token for token in everything if token not in inside])
        distance = (hidden - without).double().square().sum(-1).sqrt()  # [layer, token]
        length = hidden.double().square().sum(-1).sqrt()
        log_q = its_logits.double().log_softmax(-1)
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)  # [token]
        rows.append((distance.mean(-1), (distance / length).mean(-1), kl[-1], kl.mean()))
    return [torch.stack(part) for part in zip(*rows, strict=True)]


@pytest.mark.parametrize("removal", ["mask", "reprefill"])
def test_one_sweep_equals_one_forward_per_block(family, removal):
    model, cartridge = document(family)
    for text in TEXTS:
        shifts = leave_one_out(cartridge, probe(model, cartridge, batch=4), text, removal)
        wanted = naive(family, cartridge, text, removal)
        found = (shifts.distance, shifts.relative, shifts.kl, shifts.mean_kl)
        for got, exact in zip(found, wanted, strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("removal", ["mask", "reprefill"])
def test_the_naive_loop_notices_the_other_removal(removal):
    """A negative control: by more than the tolerance, on blocks other than the last."""
    model, cartridge = document("Llama")
    other = {"mask": "reprefill", "reprefill": "mask"}[removal]
    shifts = leave_one_out(cartridge, probe(model, cartridge), TEXTS[0], other)
    distance, _, kl, _ = naive("Llama", cartridge, TEXTS[0], removal)

    assert (shifts.distance - distance).abs()[:-1].amin(0).max() > 1e-2
    assert (shifts.kl - kl).abs()[:-1].min() > 1e-3


def test_both_removals_agree_on_the_last_block_only(family):
    model, cartridge = document(family, num_tokens=24)
    mask, reprefill = (
        leave_one_out(cartridge, probe(model, cartridge), TEXTS[0], removal)
        for removal in ("mask", "reprefill")
    )

    torch.testing.assert_close(mask.distance[-1], reprefill.distance[-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mask.kl[-1], reprefill.kl[-1], rtol=1e-5, atol=1e-5)
    assert (mask.distance - reprefill.distance)[:-1].abs().max() > 1e-2


@pytest.mark.parametrize("removal", ["mask", "reprefill"])
@pytest.mark.parametrize("scorer", [kv_sum, kl])
def test_the_ranking_is_the_same_for_every_batch_size(scorer, removal):
    model, cartridge = document("Llama", num_tokens=100)
    params = scorer.Params(removal=removal)
    scores = [
        scorer.kri_score_blocks(cartridge, probe(model, cartridge, batch), params).mean((0, 1))
        for batch in (1, 3, 16)
    ]

    torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(scores[2], scores[0], rtol=0, atol=1e-5)
    assert len({tuple(each.argsort().tolist()) for each in scores}) == 1


def test_the_second_scorer_runs_nothing():
    model, cartridge = document("Llama")
    batches = []
    told = probe(model, cartridge, batch=4, progress=lambda *batch: batches.append(batch))
    kv_sum.kri_score_blocks(cartridge, told, kv_sum.Params())
    assert [done for _, done, _ in batches] == [4, 6, 4, 6]
    kl.kri_score_blocks(cartridge, told, kl.Params())
    assert len(batches) == 4


@pytest.mark.parametrize("scorer", [kv_sum, kl])
def test_a_trained_cartridge_can_be_masked_but_not_prefilled(scorer):
    model, cartridge = document("Llama")
    trained = evolve(cartridge, trained=True)
    by_mask = scorer.kri_score_blocks(trained, probe(model, trained), scorer.Params())

    assert by_mask.isfinite().all()
    params = scorer.Params(removal="reprefill")
    with pytest.raises(ConfigError, match="is trained, so its document cannot be run"):
        scorer.kri_score_blocks(trained, probe(model, trained), params)


def test_the_first_layers_closed_form_is_its_attention_without_each_block(family):
    """Nothing lies before it, so its inputs are fixed: outputs of seven rows, one block missing."""
    model, cartridge = document(family)
    asked = probe(model, cartridge)
    for text in TEXTS:
        visible = torch.cat([torch.ones(1, 6), 1 - torch.eye(6)]).bool()
        read = asked.forward(text.token_ids, read=["head_outputs"], visible=visible)
        outputs = read.head_outputs[:, 0] @ asked.output_projection(0)
        moved = (outputs[:1] - outputs[1:]).unflatten(1, (2, 2)).sum(2)
        wanted = moved.norm(dim=-1).mean(-1).T  # [kv_head, block]
        got = closed_form.score_text(cartridge, asked, text)[0]
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scorer", [direct, energy])
def test_scores_per_head_move_with_the_blocks(scorer):
    """Attention over a visible cache is a set operation: order of storage says nothing."""
    model, cartridge = document("Qwen3")
    order = [3, 0, 5, 1, 4, 2]

    def score(scored):
        asked = (probe(model, scored),) if scorer is direct else ()
        return scorer.kri_score_blocks(scored, *asked)

    plain, moved = score(cartridge), score(evolve(cartridge, kv=cartridge.kv[order]))
    assert plain.shape == (3, 2, 6)
    torch.testing.assert_close(moved, plain[..., order], rtol=0, atol=1e-5)
