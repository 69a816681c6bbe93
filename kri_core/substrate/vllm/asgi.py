"""Looking at an HTTP request and asking the same app something, before it goes on unchanged."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from attrs import frozen

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

OF_THE_BODY = (b"content-type", b"content-length", b"transfer-encoding")


@frozen
class Response:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes

    async def send(self, send: Send) -> None:
        """To the client."""
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def json_response(status: int, said: Mapping[str, object], headers: Headers) -> Response:
    """With the headers that other middleware put on an answer to the same client."""
    body = json.dumps(said).encode()
    return Response(status, with_body(headers, body), body)


def with_body(headers: Headers, body: bytes) -> Headers:
    """The headers, those that tell of a body by a JSON one's."""
    kept = [pair for pair in headers if pair[0].lower() not in OF_THE_BODY]
    length = str(len(body)).encode()
    return [*kept, (b"content-type", b"application/json"), (b"content-length", length)]


async def read(receive: Receive, limit: int) -> list[Message]:
    """Messages up to the body's end, or the one that exceeds the limit in bytes."""
    messages: list[Message] = []
    size = 0
    while size <= limit:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return messages


def replay(messages: Sequence[Message], receive: Receive) -> Receive:
    """The messages again, then whatever else comes: the rest of a long body, a disconnect."""
    held = iter(messages)

    async def again() -> Message:
        message = next(held, None)
        return await receive() if message is None else message

    return again


def parsed(messages: Sequence[Message]) -> Mapping[str, Any]:
    """The body's JSON object; an empty one where there is none, or no end of it yet."""
    last = messages[-1]
    if last["type"] != "http.request" or last.get("more_body", False):
        return {}
    try:
        body = json.loads(b"".join(message.get("body", b"") for message in messages))
    except (ValueError, RecursionError):  # so deeply nested that it is no request
        return {}
    return body if isinstance(body, dict) else {}


@frozen
class Inside:
    """The app, asked in a client's name: with its headers, past the same other middleware."""

    app: App
    scope: Scope  # of the client's request
    receive: Receive  # what comes after its body: a disconnect

    async def get(self, path: str) -> Response:
        """The answer to a GET."""
        return await self._ask("GET", path, b"")

    async def post(self, path: str, said: Mapping[str, object]) -> Response:
        """The answer to a POST of JSON."""
        return await self._ask("POST", path, json.dumps(said).encode())

    async def _ask(self, method: str, path: str, body: bytes) -> Response:
        said: list[Message] = []

        async def keep(message: Message) -> None:
            said.append(message)

        path = self.scope.get("root_path", "") + path
        place = {"method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        headers = with_body(self.scope["headers"], body)
        request = [{"type": "http.request", "body": body}]
        inner = {**self.scope, **place, "headers": headers, "state": {}}
        await self.app(inner, replay(request, self.receive), keep)
        whole = b"".join(message.get("body", b"") for message in said)
        return Response(said[0]["status"], said[0]["headers"], whole)
