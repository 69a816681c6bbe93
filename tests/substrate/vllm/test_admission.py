"""What the middleware passes on unchanged and what it refuses, around an app that only records."""

import asyncio
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.substrate.vllm import admission
from kri_core.substrate.vllm.admission import Admission

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
UNKNOWN = {"kv_transfer_params": {"cartridge_id": "nowhere"}}


class App:
    """Stands for vLLM's: one text token per character, a key for /v1/models, an echo."""

    def __init__(self):
        self.calls = []
        self.body = b""
        self.waits = False  # for what comes after the body, as a server does that streams

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.after = await receive() if self.waits else None
        self.calls.append((scope["method"], scope["path"]))
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        status, said, headers = 200, {}, [(b"access-control-allow-origin", b"*")]
        if path == "/tokenize":
            assert dict(scope["headers"])[b"content-length"] == str(len(body)).encode()
            asked = json.loads(body)
            said = {"tokens": [ord(letter) for letter in asked.get("prompt", "chat")]}
            status = 404 if asked.get("model") == "unknown" else 200
        elif path == "/v1/models":
            status = 200 if (b"authorization", b"right") in scope["headers"] else 401
        else:
            self.body, said = body, {"served": True}
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})


@pytest.fixture
def served(shop, extra):
    """Send a body, whole or in pieces, to a server of these settings."""

    def send(
        body,
        path=COMPLETIONS,
        key=b"right",
        connector="CartridgeConnector",
        waits=False,
        method="POST",
        **changes,
    ):
        transfer = SimpleNamespace(
            kv_connector=connector, kv_connector_extra_config=extra | changes
        )
        config = SimpleNamespace(
            kv_transfer_config=transfer,
            cache_config=SimpleNamespace(block_size=16),
            model_config=SimpleNamespace(
                dtype="torch.float32", tokenizer=str(shop.model_path), tokenizer_revision=None
            ),
            parallel_config=SimpleNamespace(worker_cls="auto"),
            device_config=SimpleNamespace(device_type="cpu"),
        )
        models = SimpleNamespace(lora_requests={"adapter": None})
        app = App()
        app.waits = waits
        app.state = SimpleNamespace(vllm_config=config, openai_serving_models=models)
        pieces = body if isinstance(body, list) else [json.dumps(body).encode()]
        return asyncio.run(_sent(app, pieces, path, key, method))

    return send


async def _sent(app, pieces, path, key, method):
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces) - 1}
        for number, piece in enumerate(pieces)
    ]
    said = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": method, "path": path, "app": app}
    scope["headers"] = [(b"authorization", key), (b"content-length", b"1")]
    await Admission(app)(scope, receive, send)
    return SimpleNamespace(
        status=said[0]["status"],
        headers=dict(said[0]["headers"]),
        said=json.loads(said[1]["body"]),
        body=app.body,
        calls=[called for _, called in app.calls],
        after=app.after,
    )


def test_a_request_without_parameters_is_passed_on_and_nothing_is_asked(served):
    body = {"model": "m", "prompt": "Hello", "max_tokens": 3}

    done = served(body)

    assert (done.said, done.calls) == ({"served": True}, [COMPLETIONS])
    assert json.loads(done.body) == body


def test_what_passes_the_check_reaches_the_app_byte_by_byte(served):
    pieces = [
        b'{"model": "m", "prompt":  ',
        b'"Hello", "kv_transfer_params": {"enabled": ',
        b"false}}",
    ]

    done = served(pieces)

    assert done.body == b"".join(pieces)
    assert done.calls == ["/tokenize", COMPLETIONS]


@pytest.mark.parametrize("params", [{}, {"enabled": False}])
def test_a_client_that_goes_away_is_noticed_by_the_app(served, params):
    done = served({"prompt": "Hello", "kv_transfer_params": params}, waits=True)

    assert done.after == {"type": "http.disconnect"}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_request_at_fault_never_reaches_the_engine(served, path):
    done = served({"model": "m", "prompt": "Hello", **UNKNOWN}, path)

    assert done.status == 400
    assert done.said["error"]["message"].startswith("cartridge_id 'nowhere' is not here; give one")
    assert path not in done.calls
    assert done.headers[b"access-control-allow-origin"] == b"*"  # a browser may read it
    assert done.headers[b"content-type"] == b"application/json"


def test_token_prompts_are_taken_as_they_are(served):
    done = served({"model": "m", "prompt": [[72, 105], [72, 111]], **UNKNOWN})

    assert done.status == 400
    assert done.calls == ["/v1/models"]


def test_who_lacks_the_key_hears_only_the_server(served):
    done = served({"model": "m", "prompt": "Hello", **UNKNOWN}, key=b"wrong")

    assert done.calls[-1] == COMPLETIONS
    assert done.said == {"served": True}


def test_on_error_dense_lets_everything_pass(served):
    done = served({"model": "m", "prompt": "Hello", **UNKNOWN}, on_error="dense")

    assert done.calls == [COMPLETIONS]


@pytest.mark.parametrize(
    "body",
    [
        [b"{not json"],
        [b"[" * 100_000],
        [b"[1, 2]"],
        {"prompt": "Hello", "kv_transfer_params": "nowhere"},
        {"prompt": "Hello", "tools": [{}], **UNKNOWN},
        {"prompt": "Hello", "truncate_prompt_tokens": 5, **UNKNOWN},
        {"prompt": "Hello", "model": "unknown", **UNKNOWN},
        {"prompt": {"a": 1}, **UNKNOWN},
        {"prompt": [1, "two"], **UNKNOWN},
        {"prompt": [2**70], **UNKNOWN},
        {"prompt": [-1], **UNKNOWN},
        {**UNKNOWN},
    ],
)
def test_what_cannot_be_judged_here_is_left_to_vllm(served, body):
    done = served(body)

    assert done.said == {"served": True}
    assert done.calls[-1] == COMPLETIONS


@pytest.mark.parametrize("params", [{"stack": "A1R1K0"}, {"enabled": False}, {}])
def test_a_beam_search_would_not_get_its_parameters(served, shop, params):
    prompt = [*shop.cartridges["plain"].token_ids, 5, 6]

    done = served({"prompt": prompt, "use_beam_search": True, "kv_transfer_params": params})

    assert done.status == (400 if params else 200)
    if params:
        assert done.said["error"]["message"] == (
            "a beam search would not get its kv_transfer_params; leave one of the two out"
        )


def test_a_fault_of_the_middleware_s_own_leaves_the_request_to_vllm(served, shop, monkeypatch):
    def fails(_self, _asked):
        raise OverflowError("some number is too large")

    monkeypatch.setattr(admission.Planner, "check", fails)
    done = served({"prompt": [*shop.cartridges["plain"].token_ids, 5], **UNKNOWN})

    assert (done.status, done.calls) == (200, [COMPLETIONS])


def test_a_server_with_another_connector_is_left_alone(served):
    assert served({"prompt": "Hello", **UNKNOWN}, connector="NixlConnector").calls == [COMPLETIONS]


def test_the_route_about_the_server_is_told_to_who_has_the_key(served):
    assert served({}, "/kri", key=b"wrong", method="GET").status == 401


def test_a_server_with_another_connector_says_nothing_of_itself(served):
    assert served({}, "/kri", connector="NixlConnector", method="GET").calls == ["/kri"]


def test_other_routes_are_not_even_read(served):
    assert served([b"{not json"], "/v1/embeddings").said == {"served": True}


def test_a_body_beyond_the_limit_streams_on_whole(served, monkeypatch):
    monkeypatch.setattr(admission, "BODY_LIMIT", 40)
    body = json.dumps({"prompt": "Hello " * 20, **UNKNOWN}).encode()
    pieces = [body[at : at + 25] for at in range(0, len(body), 25)]

    done = served(pieces)

    assert (done.said, done.body) == ({"served": True}, body)


def test_an_adapter_is_known_by_the_model_s_name(served):
    asked = {"kv_transfer_params": {"cartridge_id": "plain"}}
    done = served({"model": "adapter", "prompt": "Hello", **asked})

    assert (
        "the request wants an adapter; leave one of the two out" in (done.said["error"]["message"])
    )


def test_a_cartridge_that_is_gone_before_the_first_look_leaves_judging_to_the_engine(served):
    gone = {"cartridges": {"gone": "gone.safetensors"}, "routing": {"K": 4}}

    done = served({"prompt": "Hi", **UNKNOWN}, **gone)

    assert done.said == {"served": True}


@pytest.mark.parametrize(
    ("path", "options", "refused"),
    [
        (COMPLETIONS, {"prompt_logprobs": 0}, True),
        (COMPLETIONS, {"echo": True, "logprobs": 0}, True),
        (COMPLETIONS, {"echo": True}, False),
        (COMPLETIONS, {"logprobs": 1}, False),
    ],
)
def test_reading_the_whole_prompt_is_told_as_vllm_does(served, shop, path, options, refused):
    prompt = [*shop.cartridges["plain"].token_ids, 5, 6]

    done = served({"model": "m", "prompt": prompt, **options}, path)

    assert (done.status == 400) is refused
    if refused:
        assert done.said["error"]["message"].startswith("prompt_logprobs needs the whole prompt")
