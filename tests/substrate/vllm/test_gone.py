"""CASES 32 over HTTP: clients that go away in the middle of a streamed answer."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

CLIENTS = 50
TOKENS = 250  # of each answer
STACKS = ("A1R1K2", "A0R0K0", "A0R2K2", "whole")
CARTRIDGES = ("plain", "even", "short")


@pytest.fixture(scope="module")
def server(serve, shop, tmp_path_factory):
    arguments = [shop.model_path, "--stack=A1R1K2", "--cpu-kv-space=1"]
    for name, path in shop.paths.items():
        arguments += [f"--cartridge={name}={path}", f"--prior={name}={shop.priors[name][0]}"]
    arguments += ["--", "--served-model-name=tiny", "--dtype=float32", "--max-model-len=512"]
    arguments += ["--enforce-eager", "--max-num-batched-tokens=64", "--max-num-seqs=16"]
    with serve(arguments, tmp_path_factory.mktemp("gone")) as running:
        yield running


def request(shop, number, **more):
    """Routed by one of four stacks; each has another question."""
    cart_id = CARTRIDGES[number % 3]
    prompt = [*shop.cartridges[cart_id].token_ids, number, 5, 6, 7]
    params = {"cartridge_id": cart_id, "stack": STACKS[number % 4]}
    asked = {"model": "tiny", "prompt": prompt, "temperature": 0, "kv_transfer_params": params}
    return asked | {"ignore_eos": True, "logprobs": 0, "max_tokens": 6} | more


def answered(server, asked):
    body, headers = json.dumps(asked).encode(), {"Content-Type": "application/json"}
    sent = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
    with urllib.request.urlopen(sent, timeout=120) as answer:
        said = json.load(answer)
    return said["choices"][0]["logprobs"], said["kv_transfer_params"]["kri"]["selected"]


def go_away(server, asked, pieces):
    """Read some pieces of a stream and close the connection."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(asked), headers)
    if pieces:
        with connection.getresponse() as response:
            for _ in range(pieces):
                assert response.readline().startswith(b"data: {")
                response.readline()
    connection.close()


def metric(server, name):
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return sum(map(float, re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", page, re.M)))


def test_clients_that_go_away_in_mid_answer_leave_nothing(server, shop):
    """Some before the first piece, others after up to six."""
    before = [answered(server, request(shop, number)) for number in range(12)]
    made_before = metric(server, "generation_tokens_total")
    long = [
        request(shop, number, stream=True, max_tokens=TOKENS, logprobs=None)
        for number in range(CLIENTS)
    ]

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(lambda number: go_away(server, long[number], number % 7), range(CLIENTS)))

    held = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    until = time.monotonic() + 60
    while any(metric(server, name) for name in held) and time.monotonic() < until:
        time.sleep(0.2)
    assert [metric(server, name) for name in held] == [0, 0, 0]
    made = metric(server, "generation_tokens_total") - made_before
    assert made < CLIENTS * TOKENS / 2, "they were answered to their ends"
    after = [answered(server, request(shop, number)) for number in range(12)]
    for (was, kept_before), (now, kept_now) in zip(before, after, strict=True):
        assert (now["tokens"], kept_now) == (was["tokens"], kept_before)
        assert now["token_logprobs"] == pytest.approx(was["token_logprobs"], abs=1e-4)
