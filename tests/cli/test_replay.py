"""`route --replay`: the questions of a server's trace by another stack."""

import json

import pytest

from kri_core.artifacts import read_cartridge
from kri_core.substrate.vllm.traced import TracedRequest, read_trace

REPLAY = ("route", "--cartridge", "doc.safetensors", "--replay")


@pytest.fixture
def trace(here, tmp_path):
    """Write a trace of requests to the workshop's document."""
    path = tmp_path / "trace.jsonl"
    sha256 = read_cartridge(here / "doc.safetensors").sha256

    def write(*kept, **changes):
        lines = [
            TracedRequest(
                time=1.0,
                request_id=f"request-{number}",
                cartridge="doc",
                cartridge_sha256=changes.get("sha256", sha256),
                stack="A1R2K0",
                block_size=changes.get("block_size", 16),
                kept=blocks,
                question_token_ids=(54, 71, 88),
            ).to_line()
            for number, blocks in enumerate(kept)
        ]
        path.write_text("".join(lines))
        return path

    return write


def test_each_request_is_routed_by_the_other_stack_and_compared(kri, trace):
    """Recency keeps 18, 19 and 20: of the first request's four different blocks two are shared."""
    path = trace((0, 19, 20), (18, 19, 20), (1, 2, 3))

    found = kri(*REPLAY, path, "--stack", "recency[budget=3]", "--json").json

    first, second, third = found["requests"]
    assert (first["served"], first["served_stack"]) == ([0, 19, 20], "A1R2K0")
    assert (first["kept"], first["stack"]) == ([18, 19, 20], "recency[budget=3]")
    assert first["shared"] == [19, 20]
    assert [one["overlap"] for one in (first, second, third)] == [0.5, 1.0, 0.0]
    assert found["mean_overlap"] == 0.5


def test_it_is_readable_too(kri, trace):
    done = kri(*REPLAY, trace((0, 19, 20)), "--stack", "recency[budget=3]")

    assert done.code == 0, done.err
    header, line, _, mean = done.out.splitlines()
    assert header.split() == ["served", "replayed", "overlap", "question"]
    assert line.startswith("0 19 20 by A1R2K0  18 19 20 by recency[budget=3]  50%")
    assert line.endswith("'Why'")
    assert mean == "1 requests, mean overlap 50.0%"


def test_a_prior_answers_as_it_does_for_one_request(kri, trace):
    stack = ("--stack", "A1R1K1", "--prior", "priors/doc_kri-d.pt")

    found = kri(*REPLAY, trace((0, 1, 20)), *stack, "--json").json
    alone = kri("route", "--cartridge", "doc.safetensors", *stack, "--json").json

    assert found["requests"][0]["kept"] == alone["selected_blocks"]


def test_an_engine_s_larger_blocks_are_routed_as_they_were(kri, trace):
    """21 blocks of 16 and 13 tokens are 10 of 32."""
    found = kri(*REPLAY, trace((0, 9), block_size=32), "--stack", "recency[budget=2]", "--json")

    assert found.json["requests"][0]["kept"] == [8, 9]


def test_requests_of_another_document_are_left_out_and_none_is_an_error(kri, trace):
    path = trace((0, 1))
    ours = path.read_text()
    path.write_text(trace((0, 1), sha256="0" * 64).read_text() + ours)

    assert len(kri(*REPLAY, path, "--stack", "recency[budget=2]", "--json").json["requests"]) == 1
    done = kri(*REPLAY, trace((0, 1), sha256="0" * 64), "--stack", "recency[budget=2]")
    assert done.code == 4
    assert "has no request of cartridge 'doc' as it is now; give the cartridge that was served" in (
        done.err
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2 is no JSON"),
        (b"\xff", "line 2 is no JSON"),
        (b"[]", "line 2 is no line of a trace of version 1; trace again"),
        (b'{"schema_version": 2}', "line 2 is no line of a trace of version 1; trace again"),
        (b'{"schema_version": 1}', "line 2 has a field too many or too few ('block_size', 'cart"),
        ({"kept": [1.5]}, "line 2 kept is no list of whole numbers; trace again"),
        ({"question_token_ids": "Why"}, "line 2 question_token_ids is no list of whole numbers"),
        ({"question_token_ids": [10**30]}, "line 2 question_token_ids is no list of whole numbers"),
        (b"[" * 100_000, "line 2 is no JSON"),
        ({"a\nb": 1}, "line 2 has a field too many or too few ('a\\nb'); trace again"),
        ({"block_size": "16"}, "line 2 block_size is not what a server writes; trace again"),
        ({"block_size": 10**30}, "line 2 block_size is not what a server writes; trace again"),
        ({"block_size": 0}, "has blocks of 0 tokens, which are not made of the cartridge's of 16"),
        ({"block_size": 7}, "has blocks of 7 tokens, which are not made of the cartridge's of 16"),
        ({"time": "now"}, "line 2 time is not what a server writes; trace again"),
        ({"stack": "\x1b[31m"}, "line 2 stack is not what a server writes; trace again"),
        ({"request_id": ["r"]}, "line 2 request_id is not what a server writes; trace again"),
    ],
)
def test_a_line_that_is_no_request_is_named(kri, trace, line, said):
    path = trace((0, 1))
    if isinstance(line, dict):
        line = json.dumps(json.loads(path.read_text()) | line).encode()
    path.write_bytes(path.read_bytes() + line)

    done = kri(*REPLAY, path, "--stack", "recency[budget=2]")
    assert done.code == 4
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_a_trace_that_is_not_there_is_said(kri, here):
    done = kri(*REPLAY, "nowhere.jsonl", "--stack", "recency[budget=2]")

    assert done.code == 4
    assert "nowhere.jsonl: cannot be opened (No such file or directory)" in done.err


@pytest.mark.parametrize("flag", [("--query", "Why?"), ("--explain",), ("--html", "page.html")])
def test_what_is_of_one_request_does_not_go_with_a_replay(kri, trace, flag):
    done = kri(*REPLAY, trace((0, 1)), "--stack", "recency[budget=2]", *flag)

    assert done.code == 2
    assert "--replay has its own questions; leave out --query, --explain, --html" in done.err


def test_a_line_comes_back_as_it_was_written(trace):
    path = trace((0, 19, 20))

    (request,) = read_trace(path)
    assert request.to_line() == path.read_text()
    assert (request.kept, request.request_id) == ((0, 19, 20), "request-0")
