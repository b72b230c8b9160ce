"""Fake model servers on a real socket: OpenAI's chat completions and Anthropic's messages, by a script.

In tests::

    async with FakeModels() as fake:
        fake.then(Reply((Say("Hello"),)))
        ...  # a provider with base_url = fake.openai_url

Alone: ``python -m gateway.testing.models --port 0 --tokens 40 --delay-ms 500`` prints its address and
answers every request with the user's last words.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import msgspec
from aiohttp import web

from gateway.testing import anthropic_wire, openai_wire
from gateway.testing.anthropic_wire import AnthropicWire
from gateway.testing.openai_wire import OpenAIWire
from gateway.testing.script import (
    Answer,
    Asked,
    Bytes,
    Cut,
    Faults,
    Forever,
    Gate,
    Move,
    Pause,
    Refusal,
    Reply,
    Stall,
    echo,
)

MODELS = ("fake-small", "fake-large")
_BODY_LIMIT = 256 * 1024 * 1024


class Wire(Protocol):
    """How a protocol writes one streamed answer."""

    def begin(self) -> bytes: ...
    def events(self, move: Any) -> Any: ...
    def end(self, reply: Reply) -> bytes: ...


class FakeModels:
    """Both protocols at one address. Replies given to ``then`` come first, in order; then ``answer``'s.

    ``requests`` is the transcript of what was asked. A ``key`` makes every other key wrong. Requests that
    the real services would refuse are refused with 400.
    """

    def __init__(
        self, answer: Answer | None = None, *, key: str | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._answer = answer or echo()
        self._key = key
        self._place = (host, port)
        self._next: deque[Reply | Refusal] = deque()
        self._runner: web.AppRunner | None = None
        self.requests: list[Asked] = []
        self.left = asyncio.Event()
        """Set when a client went away in the middle of an answer."""
        self.url = ""

    @property
    def openai_url(self) -> str:
        """The base URL of the OpenAI side."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL of the Anthropic side."""
        return f"{self.url}/anthropic"

    def then(self, *replies: Reply | Refusal) -> None:
        """What to answer next."""
        self._next.extend(replies)

    def forget(self) -> None:
        """Drop the replies that were not asked for."""
        self._next.clear()

    async def __aenter__(self) -> FakeModels:
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_post("/v1/chat/completions", self._completions)
        app.router.add_get("/v1/models", self._openai_models)
        app.router.add_post("/anthropic/v1/messages", self._messages)
        app.router.add_get("/anthropic/v1/models", self._anthropic_models)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._place).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await _json(request)
        if fault := self._wrong_key(_given_key(request)):
            return _refuse(Refusal(401, fault, code="invalid_api_key"), openai_wire.error)
        if fault := openai_wire.problem(body):
            return _refuse(Refusal(400, fault), openai_wire.error)
        reply = self._reply(openai_wire.asked(request.path, _headers(request), body), request)
        if isinstance(reply, Refusal):
            return _refuse(reply, openai_wire.error, request)
        if not body.get("stream"):
            return web.json_response(openai_wire.whole(reply, body["model"]))
        include_usage: bool = body.get("stream_options", {}).get("include_usage", False)
        return await self._stream(request, reply, OpenAIWire(body["model"], include_usage=include_usage))

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await _json(request)
        headers = _headers(request)
        if fault := self._wrong_key(_given_key(request)):
            return _refuse(Refusal(401, fault), anthropic_wire.error)
        if fault := anthropic_wire.problem(body, headers):
            return _refuse(Refusal(400, fault), anthropic_wire.error)
        reply = self._reply(anthropic_wire.asked(request.path, headers, body), request)
        if isinstance(reply, Refusal):
            return _refuse(reply, anthropic_wire.error, request)
        if not body.get("stream"):
            return web.json_response(anthropic_wire.whole(reply, body["model"]))
        return await self._stream(request, reply, AnthropicWire(body["model"], reply.tokens))

    async def _openai_models(self, request: web.Request) -> web.StreamResponse:
        if fault := self._wrong_key(_given_key(request)):
            return _refuse(Refusal(401, fault), openai_wire.error)
        return web.json_response(openai_wire.models(MODELS))

    async def _anthropic_models(self, request: web.Request) -> web.StreamResponse:
        if fault := self._wrong_key(_given_key(request)):
            return _refuse(Refusal(401, fault), anthropic_wire.error)
        return web.json_response(anthropic_wire.models(MODELS))

    def _wrong_key(self, given: str) -> str:
        return "" if self._key in (None, given) else f"Incorrect API key provided: {given}"

    def _reply(self, asked: Asked, request: web.Request) -> Reply | Refusal:
        assert request.transport is not None
        asked = msgspec.structs.replace(asked, peer=str(request.transport.get_extra_info("peername")))
        self.requests.append(asked)
        return self._next.popleft() if self._next else self._answer(asked)

    async def _stream(self, request: web.Request, reply: Reply, wire: Wire) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            async for piece in _pieces(reply, wire):
                if piece is None:
                    assert request.transport is not None
                    request.transport.close()
                    return response
                await response.write(piece)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return response


async def _pieces(reply: Reply, wire: Wire) -> AsyncIterator[bytes | None]:
    """What to write, one write at a time; None cuts the connection."""
    ready = bytearray(wire.begin())
    for move in reply.moves:
        if isinstance(move, Pause | Gate | Cut | Stall | Forever | Bytes):
            if ready:
                yield bytes(ready)
                ready.clear()
            async for piece in _wait(move):
                yield piece
        else:
            ready += b"".join(wire.events(move))
    yield bytes(ready) + wire.end(reply)


async def _wait(move: Move) -> AsyncIterator[bytes | None]:
    match move:
        case Pause():
            await asyncio.sleep(move.ms / 1000)
        case Gate():
            await move.opened.wait()
        case Cut():
            yield None
        case Stall():
            await asyncio.Event().wait()
        case Forever():
            while True:
                yield move.data
                await asyncio.sleep(move.ms / 1000)
        case Bytes():
            for _ in range(move.times):
                yield move.data
        case _:
            pass


def _refuse(refusal: Refusal, error: Any, request: web.Request | None = None) -> web.StreamResponse:
    if refusal.status == 0 and request is not None and request.transport is not None:
        request.transport.close()
        return web.Response()
    body = refusal.body
    if body is None:
        body = msgspec.json.encode(error(refusal.message, refusal.code, refusal.status))
    headers = {"Content-Type": "application/json", **refusal.headers}
    return web.Response(status=refusal.status, body=body, headers=headers)


def _given_key(request: web.Request) -> str:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.headers.get("x-api-key") or bearer


async def _json(request: web.Request) -> dict[str, Any]:
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


def _headers(request: web.Request) -> Mapping[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A fake model server that repeats what it is told.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--tokens", type=int, default=0, help="pieces of each answer; 0 is one per word")
    parser.add_argument("--delay-ms", type=float, default=0, help="how long each answer takes in all")
    for fault in Faults.__struct_fields__:
        parser.add_argument(f"--{fault}", type=float, default=0, help=f"share of answers to {fault}")
    parser.add_argument("--seed", type=int, default=0, help="which answers are spoilt")
    return parser.parse_args(argv)


async def serve(argv: Sequence[str] | None = None) -> None:
    """Run until cancelled; the first line of the output is the address."""
    given = _arguments(argv)
    faults = Faults(given.cut, given.stall, given.refuse, given.garble)
    answer = faults.spoil(echo(given.tokens, given.delay_ms), given.seed)
    async with FakeModels(answer, host=given.host, port=given.port) as fake:
        sys.stdout.write(f"{fake.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
