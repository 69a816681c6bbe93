"""What a run asks of a server and makes of its answers, against one that only plays it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from kri_core.errors import ConfigError, EngineError
from kri_core.evaluation.tasks.items import Agreement, Choice, Recall
from kri_core.registry import Registry
from kri_core.running import serving
from kri_core.running.crossing import Job, Reported
from kri_core.running.planning import PlannedRow, stacks_of
from kri_core.running.served import agreed, answered, needed_by, readable
from kri_core.running.server import Routed, Server, Step
from kri_core.types import Layout
from kri_core.versions import core_version, installed_versions

ABOUT = {
    "kri_core": core_version(),
    "plugins": installed_versions(),
    "vllm": "0.32.0",
    "fingerprint": "f" * 64,
    "dtype": "bfloat16",
    "logprobs": "raw_logprobs",
    "machine": "a GPU",
    "cartridges": {"cart": "sha"},
    "priors": {"cart": ["prior"]},
}
KRI = {
    "stack": "A1R2K5",
    "selected": [0, 3],
    "total_blocks": 4,
    "kept_fraction": 0.5,
    "overlay": None,
    "repair": None,
}


def completion(**kri):
    log_probs = {"token_id:7": -0.25, "token_id:9": -1.5}
    logprobs = {"tokens": ["token_id:7"], "top_logprobs": [log_probs]}
    return {"choices": [{"logprobs": logprobs}], "kv_transfer_params": {"kri": {**KRI, **kri}}}


@pytest.fixture
def playing():
    """A server that gives one answer, and keeps what it was asked."""
    running = []

    def start(said, status=200):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(said if isinstance(said, bytes) else json.dumps(said).encode())

            def do_POST(self):
                length = int(self.headers["content-length"])
                asked.append(SimpleNamespace(headers=self.headers, body=self.rfile.read(length)))
                self.do_GET()

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return Server(f"http://127.0.0.1:{server.server_port}/"), asked

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_a_step_is_one_greedy_token_and_the_wanted_log_probabilities(playing, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    server, asked = playing(completion())

    step = server.step((1, 2), (9,), {"cartridge_id": "cart"}, 1)

    assert step == Step(7, {9: -1.5}, Routed("A1R2K5", (0, 3), 4, 0.5, None))
    (request,) = asked
    body = json.loads(request.body)
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ([1, 2], 1, 0)
    assert (body["logprob_token_ids"], body["ignore_eos"]) == ([9], True)
    assert body["kv_transfer_params"] == {"cartridge_id": "cart"}
    assert request.headers["authorization"] == "Bearer sesame"


def test_a_step_leaves_no_default_of_sampling_to_the_served_model(playing):
    server, asked = playing(completion())

    server.step((1, 2), (9,), {}, 1)

    body = json.loads(asked[0].body)
    assert (body["top_p"], body["top_k"], body["min_p"]) == (1, 0, 0)  # vLLM's 0: all tokens
    assert body["repetition_penalty"] == 1
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0, 0)


def test_refreshed_tokens_are_the_report_s_and_none_with_an_overlay(playing):
    repaired, _ = playing(completion(repair={"tokens": 12}))
    laid_over, _ = playing(completion(overlay="sha"))

    assert repaired.step((1,), (9,), {}, 2).routed.refreshed_tokens == 12
    assert laid_over.step((1,), (9,), {}, 2).routed.refreshed_tokens == 0


def test_a_refusal_is_one_line_with_the_server_s_words(playing):
    server, _ = playing({"error": {"message": "no such\nprior"}}, 400)

    with pytest.raises(EngineError, match=r"/v1/completions answers 400: no such prior$"):
        server.step((1,), (9,), {}, 1)


def test_what_is_no_kri_core_server_is_said(playing):
    server, _ = playing({"detail": "hello"})
    with pytest.raises(EngineError, match=r"answers \{'detail': 'hello'\}, and not as kri-core"):
        server.about()
    with pytest.raises(EngineError, match=r"\(KeyError: 'choices'\); an evaluation needs vLLM"):
        server.step((1,), (9,), {}, 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "localhost:8000", "nonsense"])
def test_a_url_where_nobody_answers_is_one_line(url):
    with pytest.raises(EngineError, match=f"no server answers at {url}/kri .*; start kri-core"):
        Server(url).about()


RECALL = Recall(
    "r", (1, 2), options=((5, 7, 8), (5, 6, 9)), correct=0, text="", continuation=(3, 4)
)


def test_only_what_follows_the_question_is_asked_once_for_each_beginning():
    """Both options start with 5, which belongs to the prompt; the continuation is not asked."""
    assert needed_by(RECALL) == {(1, 2, 5): (7, 6), (1, 2, 5, 7): (8,)}


def test_options_share_the_request_for_their_first_token():
    choice = Choice("c", (1,), options=((5, 7), (6,)), correct=0, text="")

    assert needed_by(choice) == {(1,): (5, 6), (1, 5): (7,)}


def test_a_score_is_made_of_steps_and_what_needs_more_is_left_out():
    steps = {
        (1, 2, 5): Step(7, {7: -0.5, 6: -2.0}, None),
        (1, 2, 5, 7): Step(9, {8: -1.0}, None),
    }
    (found,) = [answered(reading, steps) for reading in readable(RECALL)]

    assert (found.scored, found.best, found.among) == ((-0.5, -1.0), (7, 9), (-0.5, -2.0))
    assert set(RECALL.score([found])) == {"mc", "em", "logp"}
    assert (RECALL.score([found])["mc"], RECALL.score([found])["em"]) == (1.0, 0.0)


def test_a_draft_needs_whole_distributions():
    item = Agreement("a", (1,), (2, 3), 2, text="")

    with pytest.raises(ConfigError, match="item 'a' compares whole distributions, which a server"):
        readable(item)


def test_answers_to_one_item_must_be_routed_alike():
    one, other = (Routed("A1R2K5", (0, last), 4, 0.5, None) for last in (2, 3))

    assert agreed("A1R2K5", [one, one], 2, 4) is one
    for said in ([one, other], [one]):
        with pytest.raises(EngineError, match="start it without --on-error dense"):
            agreed("A1R2K5", said, 2, 4)
    with pytest.raises(EngineError, match="A1R2K6 over 4 blocks was asked and the server routed"):
        agreed("A1R2K6", [one, one], 2, 4)


JOB = Job("needle8", (), None, "tiny", None, "float32", "cpu", Path("cache"), ())
STACKS = stacks_of(["A1R2K13(kri-d-kv-sum)"], (), Registry.discover())
LONGEST = Layout(2, 2, 8, 16, 640)
SAID = Reported(1, LONGEST, "f" * 64, "float32", "here, one thread")


def prepared(**changes):
    return SimpleNamespace(
        **{"prefix_hash": "cart", "sha256": "sha", "prior_files": ("prior",)} | changes
    )


def test_a_header_s_machine_dtype_and_substrate_are_the_server_s(playing):
    server, _ = playing(ABOUT)

    said = serving.served(JOB, server.url, SAID, [prepared()], STACKS)

    assert said == Reported(1, LONGEST, "f" * 64, "bfloat16", "a GPU", "vllm 0.32.0")


@pytest.mark.parametrize(
    ("about", "one", "line"),
    [
        (
            {"kri_core": "0.1.0 beef"},
            {},
            f"runs kri-core 0.1.0 beef and this run {core_version()};",
        ),
        ({"plugins": ["kri-core 0.1.0"]}, {}, "has not the plugin kri-plugin-d .* of this run; i"),
        ({"fingerprint": "e" * 64}, {}, "another model than --model tiny: its fingerprint is eeee"),
        ({"logprobs": "raw_logits"}, {}, "gives raw_logits in place of log-probabilities; start"),
        ({}, {"sha256": "new"}, "lacks 1 files of this run, first cartridge cart; start it again"),
        ({}, {"prior_files": ("x", "y")}, "lacks 2 files of this run, first prior x; start it"),
    ],
)
def test_a_server_that_is_not_ready_is_refused(playing, about, one, line):
    server, _ = playing({**ABOUT, **about})

    with pytest.raises(ConfigError, match=line):
        serving.served(JOB, server.url, SAID, [prepared(**one)], STACKS)


def test_without_a_server_the_line_says_how_to_start_one(tmp_path):
    job = Job("needle8", (), None, "tiny", None, "float32", "cpu", tmp_path, ())

    with pytest.raises(EngineError) as raised:
        serving.served(job, "http://127.0.0.1:9", SAID, [prepared()], STACKS)

    assert str(raised.value).endswith(
        f"this run's is kri-core serve tiny --cartridge {tmp_path}/cartridges --prior "
        f"{tmp_path}/priors -- --dtype float32"
    )


def test_rows_that_no_request_can_name_are_left_out_in_words(caplog):
    rows = [PlannedRow(kind, kind, (0, 0, 8)) for kind in ("full", "random", "oracle")]

    assert serving.served_rows(rows) == rows[:2]
    assert "not run, as a request names a stack and nothing else: oracle" in caplog.text
