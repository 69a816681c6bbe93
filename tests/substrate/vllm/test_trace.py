"""Writing the trace; reading it is tested with `route --replay`."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from pathlib import Path

from kri_core.errors import ConfigError
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.orders import Plan
from kri_core.substrate.vllm.trace import Trace
from kri_core.substrate.vllm.traced import read_trace

ASKED = Asked("one", (*range(40), 71, 72))
PLAN = Plan(
    request_id="one",
    cart_id="doc",
    stack="A1R1K0",
    kept=(0, 1),
    total_blocks=2,
    routing_block_size=16,
    block_size=16,
    num_tokens=40,
    rows=(0, 1, 2),
    shared=(),
    sha256="0" * 64,
)


def test_a_line_per_request_holds_the_question_and_the_choice(tmp_path):
    trace = Trace(tmp_path / "trace.jsonl")
    trace.write(ASKED, PLAN)
    trace.write(ASKED, PLAN)

    first, second = read_trace(trace.path)

    assert first.question_token_ids == (71, 72)
    assert (first.cartridge, first.stack, first.kept) == ("doc", "A1R1K0", (0, 1))
    assert (first.cartridge_sha256, first.block_size) == ("0" * 64, 16)
    assert second.time >= first.time > 0


def test_tokens_of_an_answer_are_no_part_of_the_question(tmp_path):
    trace = Trace(tmp_path / "trace.jsonl")
    trace.write(Asked("one", ASKED.prompt, {"question_tokens": 1}), PLAN)

    assert next(iter(read_trace(trace.path))).question_token_ids == (71,)


def test_a_place_that_cannot_be_written_is_said_at_the_start(tmp_path):
    with pytest.raises(
        ConfigError, match=r"trace .*cannot be written \(No such file.*another file"
    ):
        Trace(tmp_path / "nowhere" / "trace.jsonl")


def test_a_full_disk_costs_the_line_and_not_the_engine():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="No space left"), full.open("w") as file:
        file.write("the control")

    Trace(full).write(ASKED, PLAN)
