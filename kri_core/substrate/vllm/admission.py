"""Requests at fault end in an HTTP 4xx and one line: for vLLM's own `--middleware`.

A connector can end one request only with a bare HTTP 500. So the same checks are made here, before
the engine, which makes them again and trusts nothing of this. Whatever cannot be judged here goes
on to the server unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field
from prometheus_client import Counter
from vllm.logger import init_logger

from kri_core.errors import ArtifactError, ConfigError, KriError, one_line
from kri_core.substrate.vllm.about import PATH, About, settings_of
from kri_core.substrate.vllm.asgi import (
    App,
    Headers,
    Inside,
    Message,
    Receive,
    Response,
    Scope,
    Send,
    json_response,
    parsed,
    read,
    replay,
)
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.model_identity import token_text
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.prompts import CHAT, COMPLETIONS, token_ids
from kri_core.substrate.vllm.repair_checks import why_no_repair
from kri_core.substrate.vllm.scheduling import REASONS
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf

logger = init_logger("vllm.kri_core.admission")

BODY_LIMIT = 32 << 20  # bytes; a longer body is passed on as it comes, for the engine to judge
PARAMS = "kv_transfer_params"
REFUSED = Counter(
    "vllm:kri_refused_at_the_door", "Requests refused before they reach the engine", ["reason"]
)


@define(eq=False)
class Admission:
    """Asks `Planner.check` of every request that has parameters or reads its whole prompt."""

    app: App
    _about: About = field(factory=About, init=False)
    _planner: Planner | None = field(default=None, init=False)
    _one_by_one: asyncio.Lock = field(factory=asyncio.Lock, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says; what passes reaches the app as it came."""
        if _asks_about(scope):
            answer = await self._about.answer(
                Inside(self.app, scope, receive), scope["app"].state.vllm_config
            )
            await answer.send(send)
            return
        if not _is_judged(scope):
            await self.app(scope, receive, send)
            return
        messages = await read(receive, BODY_LIMIT)
        refusal = await self._refusal(scope, messages, receive)
        if refusal is None:
            await self.app(scope, replay(messages, receive), send)
        else:
            await refusal.send(send)

    async def _refusal(
        self, scope: Scope, messages: Sequence[Message], receive: Receive
    ) -> Response | None:
        path, body, state = _path(scope), parsed(messages), scope["app"].state
        params = body.get(PARAMS) or {}
        if not isinstance(params, dict) or not (params or _reads_whole_prompt(path, body)):
            return None  # no request at all; dense, or routed as the server is configured
        settings = settings_of(state.vllm_config)
        if settings is None or settings.on_error == "dense":
            return None
        app = Inside(self.app, scope, receive)
        prompts = await token_ids(path, body, app)
        if prompts is None:
            return None
        several = [_asked(path, body, prompt, state) for prompt in prompts]
        error = _of_beams(body, params)
        if error is None:
            async with self._one_by_one:
                error = await asyncio.to_thread(self._error, settings, state.vllm_config, several)
        if error is None:
            return None
        # This stands before the middleware that asks for an API key: who lacks it is told nothing.
        listed = await app.get("/v1/models")
        return _response(error, listed.headers) if listed.status == 200 else None

    def _error(self, settings: Settings, config: Any, several: Sequence[Asked]) -> KriError | None:  # noqa: ANN401
        """The first error of a batch of prompts; runs in a thread, one request at a time."""
        if self._planner is None:
            try:
                self._planner = _planner_of(settings, config)
            except KriError as error:  # since the engine started; it may be another's cartridge
                logger.warning("requests are judged by the engine alone: %s", one_line(error))
                return None
        for asked in several:
            try:
                self._planner.check(asked)
            except KriError as error:
                return error
            except Exception as error:  # noqa: BLE001 - a fault of ours is no answer to a client
                logger.warning("a request is judged by the engine alone: %s", one_line(error))
                return None
        return None


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _asks_about(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and _path(scope) == PATH


def _is_judged(scope: Scope) -> bool:
    posted = scope["type"] == "http" and scope["method"] == "POST"
    return posted and _path(scope) in (COMPLETIONS, CHAT)


def _reads_whole_prompt(path: str, body: Mapping[str, Any]) -> bool:
    """As vLLM makes prompt_logprobs of echo; a chat's top_logprobs is 0 unless it says null."""
    echoed = body.get("top_logprobs", 0) if path == CHAT else body.get("logprobs")
    return body.get("prompt_logprobs") is not None or (
        bool(body.get("echo")) and echoed is not None
    )


def _of_beams(body: Mapping[str, Any], params: Mapping[str, object]) -> KriError | None:
    """VLLM searches with requests of its own, which do not carry the parameters."""
    if not (params and body.get("use_beam_search")):
        return None
    return ConfigError(
        "a beam search would not get its kv_transfer_params; leave one of the two out"
    )


def _asked(path: str, body: Mapping[str, Any], prompt: Sequence[int], state: Any) -> Asked:  # noqa: ANN401
    adapters = list(state.openai_serving_models.lora_requests)
    return Asked(
        request_id="",
        prompt=prompt,
        params=body.get(PARAMS) or None,
        has_adapter=body.get("model") in adapters,
        reads_whole_prompt=_reads_whole_prompt(path, body),
    )


def _planner_of(settings: Settings, config: Any) -> Planner:  # noqa: ANN401
    """As the engine's, but for the model's identity, which the engine has checked."""
    block_size, model = config.cache_config.block_size, config.model_config
    return Planner(
        settings,
        Shelf.of(settings.cartridges, block_size, lambda _: None),
        block_size,
        dtype=str(model.dtype),
        text_of=token_text(model),
        cannot_repair=why_no_repair(config),
    )


def _response(error: KriError, headers: Headers) -> Response:
    """OpenAI's error format."""
    damaged = isinstance(error, ArtifactError)
    status, kind = (503, "ServiceUnavailableError") if damaged else (400, "BadRequestError")
    line = str(error).partition("\n")[0]  # a stack's error shows the stack with a caret below
    REFUSED.labels(REASONS.get(type(error).__name__, "other")).inc()
    logger.info("refused: %s", line)
    said = {"error": {"message": line, "type": kind, "param": PARAMS, "code": status}}
    return json_response(status, said, headers)
