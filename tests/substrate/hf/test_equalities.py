"""Masked, physically removed and dense restricted attention are one thing."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from kri_core.substrate.hf import HfProbe, answer
from kri_core.testing.tiny import random_tokens, tiny, tiny_cartridge

CLOSE = {"atol": 1e-5, "rtol": 0}


def probe_of(case):
    return HfProbe(case.model, case.cartridge, texts=(), batch=4)


def masked_logits(case):
    return probe_of(case).forward(case.question, read=["logits"], visible=case.visible).logits


def removed_logprobs(case, row):
    blocks = row.nonzero().flatten().tolist()
    return answer(case.model, case.cartridge, blocks, case.question, 1).question_logprobs


def test_masked_equals_dense_restricted(case, dense):
    torch.testing.assert_close(masked_logits(case), dense, **CLOSE)


def test_physically_removed_equals_dense_restricted(case, dense):
    for row, expected in zip(case.visible, dense, strict=True):
        torch.testing.assert_close(removed_logprobs(case, row), expected.log_softmax(-1), **CLOSE)


def test_rows_differ_from_each_other(dense):
    """Control: what is left out matters in every row."""
    for row in dense[1:]:
        assert (row - dense[0]).abs().max() > 1e-2


def test_all_blocks_equal_plain_generate(case):
    tokens = torch.tensor([[*case.cartridge.token_ids, *case.question]])
    plain = case.model.model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=12,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    given = answer(case.model, case.cartridge, range(6), case.question, max_new_tokens=12)

    assert list(given.token_ids) == plain.sequences[0, tokens.shape[1] :].tolist()
    chosen = [
        score.log_softmax(-1)[0, token].item()
        for score, token in zip(plain.scores, given.token_ids, strict=True)
    ]
    assert list(given.logprobs) == pytest.approx(chosen, abs=1e-5)


def test_zero_keys_are_not_absent_keys(case, dense):
    """Negative control: a zero key still takes softmax mass (ALGORITHMS 0.2)."""
    kv = case.cartridge.kv.clone()
    kv[~case.visible[1]] = 0
    zeroed = HfProbe(case.model, evolve(case.cartridge, kv=kv), texts=(), batch=4)

    logits = zeroed.forward(case.question, read=["logits"]).logits[0]

    assert (logits - dense[1]).abs().max() > 1e-2


def test_rows_do_not_see_each_other(case):
    """A batch of rows is those rows one at a time."""
    batch, probe = masked_logits(case), probe_of(case)
    for row, expected in zip(case.visible, batch, strict=True):
        alone = probe.forward(case.question, read=["logits"], visible=row[None]).logits[0]
        torch.testing.assert_close(alone, expected, **CLOSE)


def test_only_the_tail_is_seen_of_a_document_shorter_than_a_block(tiny_llama):
    cartridge = tiny_cartridge(tiny_llama, num_tokens=5)
    question = random_tokens(3, seed=1)

    masked = HfProbe(tiny_llama, cartridge, texts=(), batch=1).forward(question, read=["logits"])
    removed = answer(tiny_llama, cartridge, [], question, 1)

    with torch.no_grad():
        plain = tiny_llama.model(torch.tensor([[*cartridge.token_ids, *question]])).logits[0, 5:]
    torch.testing.assert_close(masked.logits[0], plain, **CLOSE)
    torch.testing.assert_close(removed.question_logprobs, plain.log_softmax(-1), **CLOSE)


def test_nothing_is_seen_of_a_whole_document_left_out(tiny_llama):
    """No block and no tail: the question alone, but at its positions after the document."""
    cartridge = tiny_cartridge(tiny_llama, num_tokens=16)
    question = random_tokens(3, seed=1)
    none = torch.zeros(1, 2, dtype=torch.bool)
    probe = HfProbe(tiny_llama, cartridge, texts=(), batch=1)

    masked = probe.forward(question, read=["logits"], visible=none).logits[0]
    again = probe.forward(question, read=["logits"], visible=none, removal="reprefill").logits[0]

    with torch.no_grad():
        alone = tiny_llama.model(
            torch.tensor([question]), position_ids=torch.tensor([[16, 17, 18]])
        ).logits[0]
    removed = answer(tiny_llama, cartridge, [], question, 1).question_logprobs
    torch.testing.assert_close(masked, alone, **CLOSE)
    torch.testing.assert_close(again, alone, **CLOSE)
    torch.testing.assert_close(removed, alone.log_softmax(-1), **CLOSE)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_bfloat16_stays_near_float32(family):
    question, visible = random_tokens(5, seed=1), torch.tensor([[1, 0, 0, 1, 0, 1]]).bool()
    logits = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny(family, dtype=dtype)
        cartridge = tiny_cartridge(model)
        assert cartridge.kv.dtype == dtype
        probe = HfProbe(model, cartridge, texts=(), batch=1)
        logits[dtype] = probe.forward(question, read=["logits"], visible=visible).logits
        removed = answer(model, cartridge, [0, 3, 5], question, 4)
        torch.testing.assert_close(
            removed.question_logprobs, logits[dtype][0].log_softmax(-1), atol=0.1, rtol=0
        )
    torch.testing.assert_close(logits[torch.float32], logits[torch.bfloat16], atol=0.2, rtol=0)


@pytest.mark.parametrize(
    ("stored", "engine"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)],
    ids=str,
)
def test_a_cartridge_is_cast_for_a_model_of_another_dtype(stored, engine):
    """Values are rounded, never reread as other bits (CASES 19)."""
    cartridge = tiny_cartridge(tiny("Llama", dtype=stored))
    model = tiny("Llama", dtype=engine)
    rounded = evolve(
        cartridge, kv=cartridge.kv.to(engine), tail=cartridge.tail.to(engine), sha256=""
    )

    question = random_tokens(5, seed=1)
    cast = answer(model, cartridge, [0, 2], question, 4)
    kept = answer(model, rounded, [0, 2], question, 4)

    assert cast.token_ids == kept.token_ids
    assert torch.equal(cast.question_logprobs, kept.question_logprobs)
