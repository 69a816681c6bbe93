"""A running `kri-core serve` as a run asks it: what it is, and one token's log-probabilities."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from attrs import frozen

from kri_core.artifacts.fields import structure
from kri_core.errors import ArtifactError, EngineError, one_line

SECONDS = 600  # for an answer; a repair makes all others wait
KEY = "OPENAI_API_KEY"  # of a server that was started with one
GREEDY = {  # all that a model's generation_config could set, such as Qwen2.5's penalty
    "temperature": 0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
SHOWN = 300  # characters of an answer that is none


@frozen
class About:
    """What a server says of itself."""

    kri_core: str  # version and digest of its code
    plugins: tuple[str, ...]  # installed there; the same of each
    vllm: str
    fingerprint: str
    dtype: str
    logprobs: str
    machine: str
    cartridges: Mapping[str, str | None]  # sha256 by id
    priors: Mapping[str, tuple[str, ...]]  # file names without suffix by cartridge


@frozen
class Routed:
    """What an answer says of its routing."""

    stack: str
    selected: tuple[int, ...]
    total_blocks: int
    kept_fraction: float
    refreshed_tokens: int | None  # None: nothing was repaired, or it is not known yet


@frozen
class Step:
    """The token that follows a prompt."""

    best: int
    log_probs: Mapping[int, float]  # of those that were asked for, and of the best
    routed: Routed | None  # None: from no cartridge


@frozen
class Server:
    """Speaks HTTP with a server."""

    url: str

    def about(self) -> About:
        """What it is; refuses what is no kri-core server."""
        said = self._ask("/kri", None)
        try:
            return structure(About, said, "it")
        except ArtifactError as error:
            raise EngineError(
                f"{self.url}/kri answers {_brief(said)}, and not as kri-core serve of this "
                "version does; give the URL of one"
            ) from error

    def step(
        self,
        prompt: Sequence[int],
        wanted: Sequence[int],
        params: Mapping[str, object],
        tokens: int,
    ) -> Step:
        """The token after a prompt, with the log-probabilities of the wanted ones in its place.

        `tokens` are made; a repair's report comes with the second alone.
        """
        said = self._ask(
            "/v1/completions",
            {
                "prompt": list(prompt),
                "max_tokens": tokens,
                **GREEDY,
                "ignore_eos": True,
                "logprobs": len(wanted),
                "logprob_token_ids": list(wanted),
                "return_tokens_as_token_ids": True,
                "kv_transfer_params": dict(params),
            },
        )
        try:
            return _step(said, wanted)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url} answers a completion with {_brief(said)} ({one_line(error)}); an "
                "evaluation needs vLLM 0.32 or 0.33"
            ) from error

    def _ask(self, path: str, body: Mapping[str, object] | None) -> Any:  # noqa: ANN401
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(self.url.rstrip("/") + path, data, headers)  # noqa: S310
            with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                return json.loads(answer.read())
        except HTTPError as error:
            raise EngineError(
                f"{self.url}{path} answers {error.code}: {_message(error.read())}"
            ) from error
        except (OSError, HTTPException, ValueError) as error:
            raise EngineError(
                f"no server answers at {self.url}{path} ({one_line(error)}); start kri-core serve "
                "or give its URL, such as http://localhost:8000"
            ) from error


def _step(said: Any, wanted: Sequence[int]) -> Step:  # noqa: ANN401
    found = said["choices"][0]["logprobs"]
    log_probs = {_id(token): float(value) for token, value in found["top_logprobs"][0].items()}
    routed = (said.get("kv_transfer_params") or {}).get("kri")
    return Step(
        best=_id(found["tokens"][0]),
        log_probs={token: log_probs[token] for token in wanted},
        routed=None if routed is None else _routed(routed),
    )


def _routed(said: Any) -> Routed:  # noqa: ANN401
    repair = said["repair"]
    refreshed = repair["tokens"] if repair else 0 if said["overlay"] else None
    return Routed(
        said["stack"],
        tuple(said["selected"]),
        said["total_blocks"],
        said["kept_fraction"],
        refreshed,
    )


def _id(token: str) -> int:
    """Vllm writes token_id:17."""
    return int(token.removeprefix("token_id:"))


def _message(body: bytes) -> str:
    """A server's error in one line."""
    try:
        return _brief(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return _brief(body.decode(errors="replace"))


def _brief(said: object) -> str:
    return " ".join(str(said).split())[:SHOWN]
