"""The self-check passes where routing is exact, and only there."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

import torch
from attrs import evolve

from kri_core.artifacts import read_cartridge, write_cartridge
from kri_core.errors import EngineError
from kri_core.substrate.vllm.self_check import (
    QUESTION,
    TAIL,
    _engine_args,
    check,
    disagreement,
    prepare,
)


@pytest.fixture(scope="module")
def case(shop, tmp_path_factory):
    folder = tmp_path_factory.mktemp("self-check")
    return prepare(str(shop.model_path), None, torch.float32, 16, folder)


@pytest.fixture(scope="module")
def damaged(case):
    """The same tokens with every key and value one place off; another content, so not shared."""
    held = read_cartridge(case.path)
    path = case.path.with_name("damaged.safetensors")
    write_cartridge(evolve(held, kv=held.kv.roll(1, -1), sha256="1" * 64), path)
    return evolve(case, cart_id="damaged", path=path)


@pytest.fixture(scope="module")
def running(start, case, damaged):
    with start({"cartridges": {one.cart_id: str(one.path) for one in (case, damaged)}}) as engine:
        yield engine


def test_its_prompt_is_short(case):
    assert len(case.token_ids) == 2 * 16 + TAIL
    assert len(case.token_ids) + len(case.question) == 44
    assert len(case.question) == QUESTION


def test_an_exact_engine_passes(running, case):
    check(running.llm, case)


def test_a_corrupted_cartridge_does_not(running, damaged):
    with pytest.raises(EngineError) as error:
        check(running.llm, damaged)

    said = str(error.value)
    assert said.startswith("self-check: all blocks against a dense prefill: token 0 ")
    assert said.endswith("; routing is not exact here, do not serve it")


def test_an_engine_that_attends_absent_rows_does_not(running, case):
    """All blocks alone would not show it: nothing is absent then."""
    running.builder._routes = False
    try:
        with pytest.raises(EngineError, match="self-check: block 1 alone against transformers: to"):
            check(running.llm, case)
    finally:
        running.builder._routes = True


def test_an_engine_that_refuses_does_not(running, case):
    with pytest.raises(EngineError, match=r"0 of 8 tokens came \(the engine's log says why\)"):
        check(running.llm, evolve(case, cart_id="nowhere"))


REFERENCE = [(7, -0.5), (8, -0.7)]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{7: -0.5}, {8: -0.7}], None),
        ([{7: -0.59}, {8: -0.7}], None),
        ([{7: -0.7}, {8: -0.7}], "token 0 has log-probability -0.7000, it should have -0.5000"),
        ([{7: -0.5}, {9: -0.2, 8: -0.7}], "token 1 is 9, it should be 8"),
        ([{7: -0.5}, {9: -0.2}], "token 1 is 9, it should be 8"),
        ([{7: -0.5}], "1 of 2 tokens came"),
        # As likely as each other: greedy answers may part here, and then read different texts.
        ([{6: -0.45, 7: -0.5}, {3: -4.0}], None),
        ([{6: -0.41, 7: -0.59}, {3: -4.0}], None),  # each may be off by the tolerance
        ([{6: -0.38, 7: -0.59}, {3: -4.0}], "token 0 is 6, it should be 7"),
        ([{6: -0.65, 7: -0.7}, {3: -4.0}], "token 0 has log-probability -0.7000, it should have"),
    ],
)
def test_greedy_tokens_may_part_only_where_they_are_as_likely(steps, said):
    found = disagreement(REFERENCE, steps, tolerance=0.1)

    assert found is None if said is None else found.startswith(said)


def test_the_server_s_own_flags_are_left_out():
    flags = ("--model", "m", "--port", "80", "--block-size", "16", "--api-key", "k", "--dtype=half")

    found = _engine_args(flags)

    assert (found.model, found.block_size, found.dtype) == ("m", 16, "half")
