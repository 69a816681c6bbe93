"""The real server, started as people start it, asked by the real `openai` client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.artifacts import read_cartridge, write_cartridge
from kri_core.substrate.hf import answer, build_from_tokens

DOCUMENT = "The pump is set to nine bar, and the valve behind it opens at eleven. " * 4
QUESTION = "\nHow far is it set?"
KEY = "sesame"
ANSWER = 6
CLOSE = 1e-4


@pytest.fixture(scope="module")
def texts(shop):
    """Cartridges that a text prompt and a chat start with, one that will be damaged."""
    tokenizer = shop.model.tokenizer
    starts = {
        "letter": tokenizer(DOCUMENT)["input_ids"],
        "talk": tokenizer(f"<s><|user|>{DOCUMENT}", add_special_tokens=False)["input_ids"],
        "damaged": tokenizer("Nothing here lasts. " * 4)["input_ids"],
    }
    paths = {}
    for name, tokens in starts.items():
        paths[name] = shop.root / f"{name}.safetensors"
        made = build_from_tokens(shop.model, tokens, cart_id=name, block_size=16)
        write_cartridge(made, paths[name])
    return paths


@pytest.fixture(scope="module")
def server(serve, shop, texts, tmp_path_factory):
    """`kri-core serve --self-check`, with a key."""
    folder = tmp_path_factory.mktemp("server")
    cartridges = {"plain": shop.paths["plain"], **texts}
    arguments = [shop.model_path, "--self-check"]
    arguments += [f"--cartridge={name}={path}" for name, path in cartridges.items()]
    arguments += [f"--prior=plain={path}" for path in shop.priors["plain"]]
    arguments += ["--stack=A1R1K2(~random-middle[seed=3])", "--cpu-kv-space=1"]
    arguments += ["--trace", folder / "trace.jsonl", "--", "--served-model-name=tiny"]
    arguments += ["--dtype=float32", "--max-model-len=512", "--enforce-eager", f"--api-key={KEY}"]
    with serve(arguments, folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture(scope="module")
def complete(client):
    def ask(prompt, kv_transfer_params=None, **options):
        extra = options.pop("extra_body", {})
        if kv_transfer_params is not None:
            extra = extra | {"kv_transfer_params": kv_transfer_params}
        settings = {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1} | options
        return client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **settings)

    return ask


@pytest.fixture(scope="module")
def reference(shop, texts):
    """The hf substrate's log-probabilities over the same blocks."""

    def of(cart_id, kept, question):
        path = texts.get(cart_id) or shop.paths[cart_id]
        return answer(shop.model, read_cartridge(path), kept, question, ANSWER)

    return of


def question_ids(shop, text):
    return shop.model.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_text_prompt_is_served_from_its_cartridge(complete, reference, shop):
    """<s> and 4 times 70 letters: 17 blocks of 16 and a tail of 9."""
    said = complete(DOCUMENT + QUESTION)
    kri = said.kv_transfer_params["kri"]

    assert kri["cartridge"] == "letter"
    assert kri["stack"] == "A1R1K2(~random-middle[seed=3])"
    assert (len(kri["selected"]), kri["total_blocks"]) == (4, 17)
    expected = reference("letter", kri["selected"], question_ids(shop, QUESTION))
    found = said.choices[0].logprobs.token_logprobs[: len(expected.logprobs)]
    assert found == pytest.approx(list(expected.logprobs), abs=CLOSE)


def test_a_request_names_its_cartridge_stack_and_prior(complete, reference, shop):
    question = [5, 6, 7, 8, 9]
    prompt = [*shop.cartridges["plain"].token_ids, *question]
    asked = {"cartridge_id": "plain", "stack": "A1R1K2", "prior": "plain_down"}

    said = complete(prompt, asked)

    kri = said.kv_transfer_params["kri"]
    assert (kri["stack"], kri["selected"]) == ("A1R1K2", [0, 1, 2, 11])
    expected = reference("plain", kri["selected"], question)
    found = said.choices[0].logprobs.token_logprobs[: len(expected.logprobs)]
    assert found == pytest.approx(list(expected.logprobs), abs=CLOSE)


def test_a_chat_is_compared_as_the_server_s_own_template_writes_it(client, texts):
    def ask(cart_id):
        return client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": DOCUMENT + QUESTION}],
            max_tokens=ANSWER,
            temperature=0,
            extra_body={"kv_transfer_params": {"cartridge_id": cart_id, "stack": "A1R1K0"}},
        )

    said = ask("talk").kv_transfer_params["kri"]

    assert (said["cartridge"], said["selected"]) == ("talk", [0, said["total_blocks"] - 1])
    line = refused(ask, "letter")
    assert "the prompt is not cartridge 'letter' from token 1 on: it has 258 ('<|user|>')" in line


def test_a_routed_stream_comes_piece_by_piece_and_is_the_same_text(complete):
    asked = {"cartridge_id": "letter", "stack": "A1R1K0"}
    whole = complete(DOCUMENT + QUESTION, asked)

    pieces = [piece.choices[0].text for piece in complete(DOCUMENT + QUESTION, asked, stream=True)]

    assert len(pieces) > 2
    assert "".join(pieces) == whole.choices[0].text


def test_a_plain_request_is_none_of_ours(complete):
    assert complete("Hello there").kv_transfer_params is None
    assert complete(DOCUMENT + QUESTION, {"enabled": False}).kv_transfer_params is None


def refused(ask, *arguments, **options):
    """The one line a 400 carries."""
    import openai

    with pytest.raises(openai.BadRequestError) as error:
        ask(*arguments, **options)
    said = error.value.body
    assert (said["type"], said["param"], said["code"]) == (
        "BadRequestError",
        "kv_transfer_params",
        400,
    )
    assert "\n" not in said["message"]
    return said["message"]


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"cartridge_id": "nowhere"}, "cartridge_id 'nowhere' is not here; give one of plain,"),
        ({"cart": "letter"}, "kv_transfer_params has no 'cart'; it knows cartridge_id,"),
        ({"stack": "A1R1K2(nope)"}, "no scorer is called 'nope'"),
        ({"stack": "A1R2"}, "is not a split tag; write A<anchor>R<recent>K<mid>"),
        ({"stack": 3}, "stack is 3; give a text, such as A1R2K13"),
        ({"prior": "stranger"}, "prior 'stranger' is not one of cartridge 'letter'"),
        ({"stack": "A1R1K2(~random-middle)+xa25"}, "xa25 cannot be run by this server: its worker"),
    ],
)
def test_a_request_at_fault_ends_in_400_and_one_line(complete, params, line):
    found = refused(complete, DOCUMENT + QUESTION, {"cartridge_id": "letter"} | params)

    assert line in found


def test_the_first_differing_token_is_shown_with_its_text(complete):
    line = refused(complete, "A" + DOCUMENT, {"cartridge_id": "letter"})

    assert re.search(
        r"'letter' from token 1 on: it has \d+ \('A'\), the cartridge \d+ \('T'\)", line
    )
    line = refused(complete, DOCUMENT[:40], {"cartridge_id": "letter"})
    assert "the prompt ends after 41 of the 281 tokens of cartridge 'letter'" in line


def test_a_stack_needs_a_cartridge(complete):
    line = refused(complete, "Hello there", {"stack": "A1R1K2"})

    assert "stack is given, but the prompt starts with no cartridge of this server" in line


def test_one_wrong_prompt_of_a_batch_refuses_it(complete):
    asked = {"cartridge_id": "letter", "stack": "A1R1K0"}

    good = complete([DOCUMENT + QUESTION, DOCUMENT + "?"], asked)
    assert len(good.choices) == 2
    line = refused(complete, [DOCUMENT + QUESTION, "Hello"], asked)
    assert "the prompt is not cartridge 'letter' from token 1 on" in line


@pytest.mark.parametrize(
    "options",
    [{"extra_body": {"prompt_logprobs": 0}}, {"echo": True, "logprobs": 1}],
    ids=["prompt_logprobs", "echo"],
)
def test_a_routed_request_that_reads_its_whole_prompt_is_refused(complete, options):
    """Without any parameters of ours; the same of a plain prompt is served."""
    line = refused(complete, DOCUMENT + QUESTION, **options)

    assert line.startswith("prompt_logprobs needs the whole prompt computed")
    assert complete("Hello there", **options).choices


def test_a_body_that_is_no_json_is_left_to_vllm(server):
    status, said = post(server, b"{not json", KEY)

    assert status == 400
    assert "kv_transfer_params" not in said


def test_without_the_key_nothing_of_the_cartridges_is_told(server):
    """The middleware stands before the one that asks for the key."""
    body = {"model": "tiny", "prompt": "x", "kv_transfer_params": {"cartridge_id": "nowhere"}}

    status, said = post(server, json.dumps(body).encode(), "wrong")

    assert (status, json.loads(said)) == (401, {"error": "Unauthorized"})
    assert post(server, json.dumps(body).encode(), KEY)[0] == 400


def post(server, body, key):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answered:
            return answered.status, answered.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_damaged_cartridge_is_a_503_and_the_others_are_served(complete, texts):
    import openai

    texts["damaged"].write_bytes(b"nothing of a cartridge")

    with pytest.raises(openai.InternalServerError) as error:
        complete("Nothing here lasts. " * 4 + "Does it?", {"cartridge_id": "damaged"})
    said = error.value.body
    assert (error.value.status_code, said["type"]) == (503, "ServiceUnavailableError")
    assert "damaged.safetensors" in said["message"]
    assert "\n" not in said["message"]
    assert complete(DOCUMENT + QUESTION).kv_transfer_params["kri"]["cartridge"] == "letter"


def test_the_trace_has_a_line_per_routed_request(server, complete):
    trace = server.folder / "trace.jsonl"
    before = len(trace.read_text().splitlines())

    said = complete(DOCUMENT + "Why?").kv_transfer_params["kri"]
    complete("Hello there")

    lines = trace.read_text().splitlines()
    assert len(lines) == before + 1
    last = json.loads(lines[-1])
    assert (last["cartridge"], last["kept"]) == ("letter", said["selected"])
    assert bytes(last["question_token_ids"]) != b""


def test_another_stack_is_asked_the_questions_of_the_trace(server, complete, texts):
    complete(DOCUMENT + "Why?", {"stack": "A1R1K0"})
    command = ["route", "--cartridge", texts["letter"], "--stack", "recency[budget=2]", "--json"]
    command += ["--replay", server.folder / "trace.jsonl"]

    done = subprocess.run(
        [sys.executable, "-m", "kri_core.cli", *map(str, command)],
        capture_output=True,
        text=True,
        check=True,
    )

    last = json.loads(done.stdout)["requests"][-1]
    assert (last["served"], last["kept"], last["shared"]) == ([0, 16], [15, 16], [16])


def metric(server, name):
    """The sum of a counter over its labels; 0.0 of one that is not there yet."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answered:
        page = answered.read().decode()
    return sum(map(float, re.findall(rf"^vllm:kri_{name}_total\{{.*\}} (\S+)$", page, re.M)))


def test_metrics_count_what_was_routed(server, complete):
    before = metric(server, "routed_requests")
    complete(DOCUMENT + QUESTION)
    until = time.monotonic() + 20
    while metric(server, "routed_requests") <= before and time.monotonic() < until:
        complete("Hello there")  # vLLM collects statistics with the next step

    assert metric(server, "routed_requests") > before
    assert metric(server, "rows_loaded") > 0


def test_metrics_count_what_never_reached_the_engine(server, complete):
    before = metric(server, "refused_at_the_door")

    refused(complete, "Hello there", {"cartridge_id": "nowhere"})

    assert metric(server, "refused_at_the_door") == before + 1


def test_the_process_that_was_started_is_vllm_itself(server):
    """So that a signal reaches it: `serve` has become the server."""
    command = Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0")

    assert "vllm.entrypoints.openai.api_server" in command
    assert command[command.index("--block-size") + 1] == "16"
    assert "self-check: routed answers are exact" in (server.folder / "log").read_text()
