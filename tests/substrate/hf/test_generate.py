"""A routed answer: what it holds, when it stops, what it refuses. Equalities: test_equalities."""

from __future__ import annotations

import pytest
import torch

from kri_core.errors import ConfigError, EngineError
from kri_core.substrate.hf import answer, load_prefix
from kri_core.substrate.hf.generate import stop_ids
from kri_core.testing.tiny import random_tokens, tiny_cartridge, tiny_llama

QUESTION = random_tokens(5, seed=1)


def test_only_the_selected_blocks_and_the_tail_are_held(tiny_llama, tiny_cartridge):
    prefix = load_prefix(tiny_llama, tiny_cartridge, [4, 1])

    expected = torch.cat([tiny_cartridge.keys([1, 4]), tiny_cartridge.tail[:, 0]], 2)
    assert prefix.blocks == (1, 4)
    for held, keys in zip(prefix.keys, expected, strict=True):
        assert torch.equal(held, keys)


def test_kv_bytes_counts_what_is_held(tiny_llama, tiny_cartridge):
    """Keys and values, 3 layers, 2 KV heads, 8 dimensions, 4 bytes each."""
    per_token = 2 * 3 * 2 * 8 * 4
    assert answer(tiny_llama, tiny_cartridge, [1, 4], QUESTION, 1).kv_bytes == 18 * per_token
    assert answer(tiny_llama, tiny_cartridge, [], QUESTION, 1).kv_bytes == 2 * per_token
    assert tiny_cartridge.num_bytes == 50 * per_token


def test_the_order_of_the_blocks_does_not_matter(tiny_llama, tiny_cartridge):
    one, other = (
        answer(tiny_llama, tiny_cartridge, blocks, QUESTION, 6) for blocks in ([1, 4], [4, 1])
    )
    assert one.token_ids == other.token_ids
    assert one.logprobs == other.logprobs


def test_it_stops_at_a_stop_token_and_keeps_it(tiny_llama, tiny_cartridge, monkeypatch):
    config = tiny_llama.model.generation_config
    monkeypatch.setattr(config, "eos_token_id", None)
    full = answer(tiny_llama, tiny_cartridge, [1, 4], QUESTION, 8).token_ids
    assert len(full) == 8

    third = full[2]
    monkeypatch.setattr(config, "eos_token_id", third)
    cut = answer(tiny_llama, tiny_cartridge, [1, 4], QUESTION, 8).token_ids

    assert cut == full[: full.index(third) + 1]


@pytest.mark.parametrize(("eos", "ids"), [(None, set()), (257, {257}), ([3, 4], {3, 4})])
def test_stop_ids_of_every_form(tiny_llama, monkeypatch, eos, ids):
    monkeypatch.setattr(tiny_llama.model.generation_config, "eos_token_id", eos)
    assert stop_ids(tiny_llama) == ids


def test_no_new_tokens_still_reads_the_question(tiny_llama, tiny_cartridge):
    given = answer(tiny_llama, tiny_cartridge, [1], QUESTION, 0)

    assert given.token_ids == given.logprobs == ()
    assert given.question_logprobs.shape == (5, 261)
    assert given.question_logprobs.logsumexp(-1).abs().max() < 1e-5


def test_seconds_are_told_apart(tiny_llama, tiny_cartridge):
    given = answer(tiny_llama, tiny_cartridge, [1], QUESTION, 2)
    assert min(given.load_seconds, given.prefill_seconds, given.decode_seconds) > 0


def test_an_empty_question(tiny_llama, tiny_cartridge):
    with pytest.raises(ConfigError, match="the question has no tokens; ask something"):
        answer(tiny_llama, tiny_cartridge, [1], [], 1)


def test_positions_end_where_the_model_does():
    """50 + 5 tokens are read and of 4 new ones 3; the last is only said."""
    model = tiny_llama(max_position_embeddings=58)
    model.model.generation_config.eos_token_id = None
    cartridge = tiny_cartridge(model)
    assert len(answer(model, cartridge, [1], QUESTION, 4).token_ids) == 4
    with pytest.raises(
        ConfigError, match="59 tokens are needed but the model takes 58; give a shorter document"
    ):
        answer(model, cartridge, [1], QUESTION, 5)


@pytest.mark.parametrize("blocks", [[1, 1], [6], [-1]])
def test_blocks_that_are_not_the_cartridges(tiny_llama, tiny_cartridge, blocks):
    with pytest.raises(ConfigError, match=r"blocks must be distinct numbers below 6, .*; got \["):
        answer(tiny_llama, tiny_cartridge, blocks, QUESTION, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_answer_out_of_nan_is_refused(tiny_cartridge, value):
    """Its argmax would be token 0, again and again; as float16 gives where it overflows."""
    model = tiny_llama()
    model.model.lm_head.weight.data[5] = value
    wanted = (
        r"tiny-llama computed NaN or infinity in torch\.float32; give --dtype float32 or bfloat"
    )
    with pytest.raises(EngineError, match=wanted):
        model.run(model.tokens(QUESTION), model.positions(0, 5), keep=1)


def test_a_logit_that_is_switched_off_is_fine():
    model = tiny_llama()
    model.model.lm_head.register_forward_hook(
        lambda _m, _i, out: out.index_fill(-1, out.new_zeros(1).long(), -torch.inf)
    )

    logits = model.run(model.tokens(QUESTION), model.positions(0, 5), keep=1)
    assert logits[0, 0, 0] == -torch.inf
