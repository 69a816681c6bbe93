"""Routed answers of a real vLLM equal the hf substrate's, alone and in mixed batches."""

from __future__ import annotations

import pytest

from kri_core.substrate.hf import answer, build_from_tokens

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

QUESTION = [5, 6, 7, 8, 9]
LONG_QUESTION = [(7 * number) % 250 for number in range(150)]  # three chunks of 64


def test_the_configured_stack_keeps_what_its_default_prior_ranks_first(engine, agree):
    """Rising scores: of blocks 1 to 10 the last two, between the pins 0 and 11."""
    said = engine.ask("plain")

    assert said.kri["selected"] == [0, 9, 10, 11]
    assert said.kri["stack"] == "A1R1K2"
    agree(said, engine.reference("plain", [0, 9, 10, 11]))


def test_a_request_may_name_another_prior_of_its_cartridge(engine, agree):
    said = engine.ask("plain", prior="plain_down")

    assert said.kri["selected"] == [0, 1, 2, 11]
    agree(said, engine.reference("plain", [0, 1, 2, 11]))


@pytest.mark.parametrize("cart_id", ["plain", "even", "short"])
def test_all_blocks_equal_a_dense_prefill(engine, agree, cart_id):
    whole = engine.ask(cart_id, stack="whole")
    dense = engine.ask(cart_id, enabled=False)

    assert whole.kri["kept_fraction"] == 1.0
    assert dense.kri is None
    assert dense.tokens == whole.tokens
    assert dense.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    agree(whole, engine.reference(cart_id, whole.kri["selected"]))


def test_a_mixed_batch_answers_each_request_as_if_it_were_alone(engine, agree):
    requests = [
        ("plain", QUESTION, {}),
        ("even", QUESTION, {"stack": "recency[budget=3]"}),
        ("plain", LONG_QUESTION, {"stack": "A1R0K3", "prior": "plain_down"}),
        ("short", QUESTION, {"enabled": False}),
        ("short", LONG_QUESTION, {"cartridge_id": "short"}),
        ("even", QUESTION, {"stack": "whole"}),
    ]

    answers = engine.ask_all(requests)

    kept = [[0, 9, 10, 11], [9, 10, 11], [0, 1, 2, 3], range(6), [0, 3, 4, 5], range(12)]
    for said, (cart_id, question, _), blocks in zip(answers, requests, kept, strict=True):
        assert said.kri is None or said.kri["selected"] == list(blocks)
        agree(said, engine.reference(cart_id, list(blocks), question))


def test_with_compaction_switched_off_the_answer_is_another(engine):
    """The control of every equality here: absent rows attended as they lie give other numbers."""
    right = engine.ask("plain")
    engine.builder._routes = False
    try:
        wrong = engine.ask("plain")
    finally:
        engine.builder._routes = True

    assert max(abs(a - b) for a, b in zip(right.logprobs, wrong.logprobs, strict=True)) > 0.01


def test_the_prompt_finds_the_cartridge_that_its_id_names(engine):
    by_tokens = engine.ask("even", stack="recency[budget=2]")
    by_id = engine.ask("even", stack="recency[budget=2]", cartridge_id="even")

    assert by_tokens.kri["cartridge"] == by_id.kri["cartridge"] == "even"
    assert (by_tokens.tokens, by_tokens.logprobs) == (by_id.tokens, by_id.logprobs)


def test_the_response_counts_rows_loaded_and_rows_that_were_there(engine):
    """Four blocks and the tail's row; the tail is the request's own and loaded every time."""
    engine.forget()

    first, second = engine.ask("plain"), engine.ask("plain")

    assert (first.kri["rows_loaded"], first.kri["rows_resident"]) == (5, 0)
    assert (second.kri["rows_loaded"], second.kri["rows_resident"]) == (1, 4)
    assert first.kri["kept_fraction"] == 4 / 12


def test_unselected_blocks_are_never_allocated(engine):
    """5 rows of the cartridge and one for the question and answer, of 14 that a dense one takes."""
    engine.forget()
    pool = engine.scheduler.kv_cache_manager.block_pool
    taken = []
    get_new_blocks = pool.get_new_blocks

    def counted(count):
        taken.append(count)
        return get_new_blocks(count)

    pool.get_new_blocks = counted
    try:
        engine.ask("plain", tokens=3)
        routed, taken[:] = sum(taken), []
        engine.ask("plain", tokens=3, enabled=False)
    finally:
        pool.get_new_blocks = get_new_blocks

    assert routed == 5
    assert sum(taken) == 13


def test_live_maps_are_empty_and_every_block_is_free_once_all_have_answered(engine):
    before = engine.free_blocks
    engine.ask_all([("plain", QUESTION, {}), ("even", QUESTION, {}), ("short", QUESTION, {})])

    assert engine.dispatcher.live == 0
    assert engine.free_blocks == before


@pytest.mark.parametrize(
    ("cart_id", "kept"),
    [("plain", [0, 9, 10, 11]), ("even", [0, 9, 10])],  # even's block 11 is a tail of 15 tokens
)
def test_a_prompt_that_is_the_cartridge_computes_its_last_token(engine, agree, cart_id, kept):
    """CASES 25, 39: as a cartridge without that token would answer it; twice in a row."""
    *document, last = engine.shop.cartridges[cart_id].token_ids
    shorter = build_from_tokens(engine.shop.model, document, cart_id="shorter", block_size=16)

    twice = [engine.ask(cart_id, [], cartridge_id=cart_id) for _ in range(2)]

    reference = answer(engine.shop.model, shorter, kept, [last], 6)
    for said in twice:
        assert said.kri["selected"] == [0, 9, 10, 11]
        assert said.kri["cartridge_tokens"] == len(document)
        agree(said, reference)


def test_a_prompt_that_ends_within_the_last_block_keeps_that_block(engine):
    """The computed token needs a place in block 11, so block 11 is there."""
    said = engine.ask("even", [], stack="A1R0K0")

    assert said.kri["selected"] == [0, 11]
