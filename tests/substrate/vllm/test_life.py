"""Requests that do not go straight through: preempted, aborted, failed, many at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

STACKS = ["A1R1K2", "recency[budget=3]", "whole", "A0R0K5"]
CARTRIDGES = ["plain", "even", "short"]


@pytest.fixture
def file_goes_before_loading(engine, monkeypatch):
    """The cartridge `even` is there when requests are planned, and gone when they are loaded."""
    path = engine.shop.paths["even"]
    hidden = path.with_suffix(".hidden")
    place = type(engine.dispatcher).placed

    def hide_then_place(dispatcher, *args):
        if path.exists():
            path.rename(hidden)
        place(dispatcher, *args)

    monkeypatch.setattr(type(engine.dispatcher), "placed", hide_then_place)
    engine.forget()
    yield
    monkeypatch.undo()
    hidden.rename(path)
    engine.forget()


@pytest.fixture(scope="module")
def engine(start):
    """Room for 44 blocks of 16: two dense requests or half a dozen routed ones."""
    with start(max_num_batched_tokens=64, num_gpu_blocks_override=45, max_num_seqs=32) as running:
        yield running


def question(number):
    return [(number * 31 + place * 7) % 250 for place in range(3 + number % 9)]


def requests(count):
    """Three cartridges, four stacks, every question another one."""
    return [
        (CARTRIDGES[number % 3], question(number), {"stack": STACKS[number // 3 % 4]})
        for number in range(count)
    ]


def preemptions(engine, monkeypatch):
    """The request ids that were preempted from here on."""
    seen = []
    preempt = engine.scheduler._preempt_request

    def watched(request, *args, **kwargs):
        seen.append((request.request_id, request.num_output_tokens))
        return preempt(request, *args, **kwargs)

    monkeypatch.setattr(engine.scheduler, "_preempt_request", watched)
    return seen


def test_200_requests_at_once_each_get_their_own_answer(engine):
    """CASES 32: 3 cartridges, 4 stacks; each answer is the one it gets alone."""
    asked = requests(200)
    alone = [engine.ask(*one[:2], **one[2]) for one in asked]
    engine.forget()

    together = engine.ask_all(asked)

    for one, other in zip(alone, together, strict=True):
        assert other.kri["selected"] == one.kri["selected"]
        assert other.tokens == one.tokens
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
    assert engine.dispatcher.live == 0


def test_the_200_answers_differ_by_cartridge_stack_and_question(engine):
    """The control: answers that were mixed up would be noticed."""
    answers = [engine.ask(*one[:2], **one[2]) for one in requests(24)]

    assert len({tuple(said.logprobs) for said in answers}) == 24


def test_a_preempted_request_ends_as_if_it_had_not_been(engine, monkeypatch):
    """CASES 31: rows are freed in the middle of decoding and placed again from the same plan."""
    asked = [("plain", question(number), {"stack": "A1R2K5"}) for number in range(8)]
    alone = [engine.ask(*one[:2], tokens=100, **one[2]) for one in asked]
    engine.forget()
    seen = preemptions(engine, monkeypatch)

    together = engine.ask_all(asked, tokens=100)

    assert [tokens for _, tokens in seen if tokens >= 10], "nothing was preempted in mid-answer"
    for one, other in zip(alone, together, strict=True):
        assert other.kri["selected"] == one.kri["selected"]
        assert other.tokens == one.tokens
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
    assert engine.dispatcher.live == 0
    assert engine.free_blocks == 44


def test_an_aborted_request_leaves_nothing(engine):
    """CASES 32: before it is scheduled, while it loads, and in mid-answer."""
    core, client = engine.llm.llm_engine, engine.llm.llm_engine
    for steps in (0, 1, 3):
        before = engine.free_blocks
        prompt = {"prompt_token_ids": engine.prompt("plain")}
        client.add_request(f"gone-{steps}", prompt, engine.params(50))
        for _ in range(steps):
            core.step()
        assert engine.dispatcher.live == 1
        client.abort_request([f"gone-{steps}"])
        while core.has_unfinished_requests():
            core.step()
        core.step()
        assert engine.dispatcher.live == 0
        assert engine.free_blocks == before


def test_matched_tokens_are_a_look_up_without_side_effects(engine):
    """CASES 26: asked one to five times with changing local hits."""
    connector = engine.scheduler.connector
    prompt = {"prompt_token_ids": engine.prompt("plain")}
    engine.llm.llm_engine.add_request("asked", prompt, engine.params(2))
    (request_id,) = connector.dispatcher._plans
    request = SimpleNamespace(request_id=request_id)
    before = dict(connector.dispatcher.counts.total)

    found = [connector.get_num_new_matched_tokens(request, hit) for hit in (0, 0, 16, 0, 32)]

    assert found == [(200, False), (200, False), (184, False), (200, False), (168, False)]
    assert dict(connector.dispatcher.counts.total) == before
    assert connector.get_block_skip_list(request_id, 12) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert connector.get_block_skip_list("of no cartridge", 12) == []
    while engine.llm.llm_engine.has_unfinished_requests():
        engine.llm.llm_engine.step()
    assert engine.dispatcher.live == 0


def test_a_step_with_nothing_to_run_loses_nothing(engine):
    """CASES 29: a refused request makes such a step; rows written are rows counted."""
    engine.forget()
    before = engine.worker.counts.total["rows_loaded"]

    refused, routed = engine.ask_all(
        [("plain", question(1), {"stack": "no-such-split"}), ("plain", question(2), {})]
    )

    assert refused.finish == "error"
    assert routed.kri["rows_loaded"] == 5
    assert engine.worker.counts.total["rows_loaded"] - before == 5


def test_a_file_that_is_gone_when_a_request_arrives_fails_that_request(engine):
    """CASES 30: the others are answered, and it is served again once it is back."""
    path = engine.shop.paths["short"]
    hidden = path.with_suffix(".hidden")
    path.rename(hidden)
    try:
        gone, other = engine.ask_all(
            [("short", question(1), {"cartridge_id": "short"}), ("plain", question(1), {})]
        )
    finally:
        hidden.rename(path)

    assert gone.finish == "error"
    assert other.finish == "length"
    assert engine.ask("short", cartridge_id="short").finish == "length"
    assert engine.dispatcher.live == 0


@pytest.mark.usefixtures("file_goes_before_loading")
def test_a_file_that_goes_between_planning_and_loading_fails_those_who_share_it(engine):
    """CASES 30: what was not written is never attended; the others are answered."""
    answers = engine.ask_all(
        [("even", question(1), {}), ("even", question(2), {}), ("plain", question(3), {})]
    )

    assert [said.finish for said in answers] == ["error", "error", "length"]
    assert engine.worker.counts.total["load_failures"] >= 1
    assert engine.dispatcher.live == 0


@pytest.mark.usefixtures("file_goes_before_loading")
def test_without_the_report_of_failed_blocks_they_would_be_attended(engine, monkeypatch):
    """The control: an answer from memory that no one wrote."""
    monkeypatch.setattr(type(engine.worker), "take_failed_blocks", lambda _worker: set())

    assert engine.ask("even", question(1)).finish == "length"


def test_after_a_failed_load_the_cartridge_is_loaded_anew(engine):
    assert engine.ask("even", question(1)).kri["rows_resident"] == 0


def test_prompt_logprobs_of_a_routed_request_are_refused(engine):
    """They need the whole prompt computed; a dense request may have them."""
    params = engine.params(2)
    params.prompt_logprobs = 0
    prompt = {"prompt_token_ids": engine.prompt("plain")}
    (refused,) = engine.llm.generate([prompt], [params], use_tqdm=False)
    params = engine.params(2, enabled=False)
    params.prompt_logprobs = 0
    (dense,) = engine.llm.generate([prompt], [params], use_tqdm=False)

    assert refused.outputs[0].finish_reason == "error"
    assert dense.outputs[0].finish_reason == "length"
