"""What one request may see of another's KV: cartridge rows of equal content, nothing else."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from kri_core.artifacts import seal, write_cartridge

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

KEPT = [0, 9, 10, 11]
POISON = 1e4  # as key and as value; not NaN, which the CPU kernel multiplies by a weight of 0


def same(one, other):
    return one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.fixture(autouse=True)
def _nothing_cached(engine):
    engine.forget()


@pytest.fixture(scope="module")
def alone(engine):
    """Answers of an engine that holds nothing else."""

    def of(**asked):
        engine.forget()
        said = engine.ask("plain", **asked)
        engine.forget()
        return said

    return of


def poisoned(engine, spared=()):
    """Every block of the cache but the spared ones holds numbers that no answer survives."""
    for layer in engine.layers:
        cache = layer.kv_cache
        others = [number for number in range(cache.shape[0]) if number not in set(spared)]
        cache[others] = POISON


def resident(engine):
    """The cache blocks that another request could be given."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    return [block.block_id for block in pool.blocks if block.block_hash is not None]


def test_absent_and_free_blocks_are_never_attended(engine, agree):
    """Poison everywhere, the null block included: the answer does not change."""
    poisoned(engine)

    agree(engine.ask("plain"), engine.reference("plain", KEPT))


def test_resident_rows_are_attended(engine, agree):
    """The same poison on the rows a second request shares: now it does change."""
    engine.ask("plain")
    kept = resident(engine)
    poisoned(engine, spared=kept)
    agree(engine.ask("plain"), engine.reference("plain", KEPT))

    poisoned(engine)
    shared = engine.ask("plain")

    assert shared.kri["rows_resident"] == 4
    right = engine.reference("plain", KEPT)
    assert shared.logprobs != pytest.approx(list(right.logprobs), abs=1e-2)


@pytest.mark.parametrize("first", [{}, {"stack": "recency[budget=3]"}, {"stack": "whole"}])
def test_a_dense_request_sees_nothing_of_a_routed_one(engine, alone, first):
    """CASES 28."""
    dense = alone(enabled=False)
    engine.ask("plain", **first)

    assert same(engine.ask("plain", enabled=False), dense)


def test_a_routed_request_sees_nothing_of_a_dense_one(engine, alone):
    routed = alone()
    engine.ask("plain", enabled=False)
    after = engine.ask("plain")

    assert same(after, routed)
    assert after.kri["rows_resident"] == 0


def test_two_stacks_share_the_rows_that_both_keep(engine, alone):
    """[0, 9, 10, 11] then [9, 10, 11]: three rows are there, the tail's is loaded."""
    second = alone(stack="recency[budget=3]")
    engine.ask("plain")
    after = engine.ask("plain", stack="recency[budget=3]")

    assert same(after, second)
    assert (after.kri["rows_loaded"], after.kri["rows_resident"]) == (1, 3)


def test_without_the_private_salt_a_routed_request_would_take_dense_rows(engine):
    """The control of two tests above: the engine's own look-up does find the dense prefix."""
    engine.ask("plain", enabled=False)
    manager = engine.scheduler.kv_cache_manager
    found = []
    look_up = manager.get_computed_blocks

    def seen(request):
        blocks = look_up(request)
        found.append(blocks[1])
        return blocks

    manager.get_computed_blocks = seen
    try:
        engine.ask("plain", enabled=False)
        engine.ask("plain")
    finally:
        manager.get_computed_blocks = look_up

    assert found == [192, 0]


def test_no_client_can_guess_the_private_salt_of_another_s_request(engine):
    """Else it could have dense rows found where none may be, by a request id it knows."""
    params, prompt = engine.params(2), {"prompt_token_ids": engine.prompt("plain")}
    salts = []
    for _ in range(2):
        engine.llm.llm_engine.add_request("known", prompt, params)
        (request,) = engine.scheduler.requests.values()
        salts.append(request.cache_salt)
        while engine.llm.llm_engine.has_unfinished_requests():
            engine.llm.llm_engine.step()

    assert salts[0] != salts[1]
    assert "known" not in salts[0] + salts[1]


def test_a_cache_salt_keeps_even_cartridge_rows_apart(engine, alone):
    """CASES 27."""
    unsalted = engine.ask("plain")
    other = engine.ask("plain", salt="tenant-a")
    again = engine.ask("plain", salt="tenant-a")

    assert other.kri["rows_resident"] == 0
    assert again.kri["rows_resident"] == 4
    assert same(unsalted, other)


@contextmanager
def replaced(path, cartridge):
    before = path.read_bytes()
    write_cartridge(cartridge, path)
    try:
        yield
    finally:
        path.write_bytes(before)


def halved(engine):
    """The cartridge `plain` with other values under the same tokens."""
    held = engine.shop.cartridges["plain"]
    kv, tail = held.kv * 0.5, held.tail * 0.5
    return seal(held.cart_id, 16, held.model, held.token_ids, kv, tail, trained=True)


def test_a_rewritten_file_is_not_served_from_old_resident_rows(engine, agree):
    """The same name and tokens, other values: loaded anew, and answered from."""
    before = engine.ask("plain")
    with replaced(engine.shop.paths["plain"], halved(engine)):
        after = engine.ask("plain", cartridge_id="plain")

    assert after.kri["rows_resident"] == 0
    assert not same(before, after)
    assert same(engine.ask("plain", cartridge_id="plain"), before)


def test_nothing_computed_after_a_routed_prefix_is_published(engine, alone):
    """A long question twice: nothing but the four cartridge rows is in the prefix cache."""
    question = [number % 250 for number in range(100)]
    engine.ask("plain", question)

    assert len(resident(engine)) == 4
    dense = engine.ask("plain", question, enabled=False)
    engine.forget()
    assert same(dense, engine.ask("plain", question, enabled=False))


def test_without_the_content_in_their_hash_rows_would_be_anyone_s(engine, monkeypatch):
    """The control: under one hash for all, a salt and a rewritten file find the old rows."""
    monkeypatch.setattr("kri_core.substrate.vllm.rows.content_hash", lambda *_: b"the same")
    before = engine.ask("plain")
    salted = engine.ask("plain", salt="tenant-a")
    with replaced(engine.shop.paths["plain"], halved(engine)):
        after = engine.ask("plain", cartridge_id="plain")
    engine.forget()

    assert salted.kri["rows_resident"] == after.kri["rows_resident"] == 4
    assert not same(before, after)  # a mixture: the tail is the new file's
