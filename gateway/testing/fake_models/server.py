"""Fake model servers on a real socket: each vendor's protocol at its own path, with scripted answers.

In tests::

    async with FakeModels() as fake:
        fake.then(Reply((Say("Hello"),)))
        ...  # a provider with base_url = fake.openai_url

As a program, ``python -m gateway.testing.fake_models.server --port 0 --tokens 40 --delay-ms 500`` prints its
address and answers every request with the user's last message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from gateway.testing.fake_models.dialect import Dialect, PublicList, TriesSocket, Wire
from gateway.testing.fake_models.script import (
    Answer,
    Bytes,
    Cut,
    Faults,
    Forever,
    Gate,
    ModelRequest,
    Move,
    Pause,
    Refusal,
    Reply,
    Stall,
    echo,
)
from gateway.testing.fake_models.vendors import DIALECTS

MODELS = ("fake-small", "fake-large")
_BODY_LIMIT = 256 * 1024 * 1024


class FakeModels:
    """All protocols at one address. Replies given to ``then`` are used first, in order; then those of
    ``answer``.

    ``requests`` are all requests so far. With a ``key`` every other key is refused. Requests that the real
    services would refuse are refused with 400. ``dialects`` are additional protocols.
    """

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        dialects: Sequence[Dialect] = (),
    ) -> None:
        self._dialects = tuple(dict.fromkeys((*DIALECTS.values(), *dialects)))
        self._answer = answer or echo()
        self._key = key
        self._address = (host, port)
        self._next: deque[Reply | Refusal] = deque()
        self._runner: web.AppRunner | None = None
        self.requests: list[ModelRequest] = []
        self.left = asyncio.Event()
        """Set when a client disconnects in the middle of an answer."""
        self.url = ""

    @property
    def openai_url(self) -> str:
        """The base URL of the OpenAI protocol."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL of the Anthropic protocol."""
        return f"{self.url}/anthropic"

    def at(self, dialect: Dialect | str) -> str:
        """Return the base URL of a protocol, given by its dialect or the vendor's name."""
        return self.url + (DIALECTS[dialect] if isinstance(dialect, str) else dialect).path

    def then(self, *replies: Reply | Refusal) -> None:
        """Set the next replies."""
        self._next.extend(replies)

    def forget(self) -> None:
        """Drop the replies that are left."""
        self._next.clear()

    async def __aenter__(self) -> FakeModels:
        app = web.Application(client_max_size=_BODY_LIMIT)
        for dialect in self._dialects:
            for route in dialect.chat_routes:
                app.router.add_post(dialect.path + route, partial(self._chat, dialect))
            app.router.add_get(dialect.path + dialect.models_route, partial(self._models, dialect))
            if isinstance(dialect, TriesSocket):
                app.router.add_get(dialect.path + dialect.socket_route, _refuse_socket)
            if key_path := _key_path(dialect):
                app.router.add_get(key_path, partial(self._check_key, dialect))
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._address).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _chat(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        body = await _json(request)
        headers = _headers(request)
        if fault := self._key_error(dialect.key(headers)):
            return _refuse(dialect, Refusal(401, fault))
        if fault := dialect.problem(request.path, headers, body):
            return _refuse(dialect, Refusal(400, fault))
        model_request = dialect.parse(request.path, headers, body)
        reply = self._reply(model_request, request)
        if isinstance(reply, Refusal):
            return _refuse(dialect, reply, request)
        if not dialect.streams(model_request):
            return web.json_response(dialect.answer_body(model_request, reply))
        return await self._stream(request, reply, dialect.wire(model_request, reply), dialect.content_type)

    async def _models(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        fault = self._key_error(dialect.key(_headers(request)))
        if fault and not _key_path(dialect):
            return _refuse(dialect, Refusal(401, fault))
        return web.json_response(dialect.model_list(MODELS))

    async def _check_key(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        if fault := self._key_error(dialect.key(_headers(request))):
            return _refuse(dialect, Refusal(401, fault))
        return web.json_response({"data": {"label": "a key"}})

    def _key_error(self, given: str) -> str:
        return "" if self._key in (None, given) else f"Incorrect API key provided: {given}"

    def _reply(self, model_request: ModelRequest, request: web.Request) -> Reply | Refusal:
        assert request.transport is not None
        model_request = msgspec.structs.replace(
            model_request, peer=str(request.transport.get_extra_info("peername"))
        )
        self.requests.append(model_request)
        return self._next.popleft() if self._next else self._answer(model_request)

    async def _stream(
        self, request: web.Request, reply: Reply, wire: Wire, content_type: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
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


async def _refuse_socket(request: web.Request) -> web.StreamResponse:
    raise web.HTTPUpgradeRequired


def _key_path(dialect: Dialect) -> str:
    return dialect.key_path if isinstance(dialect, PublicList) else ""


async def _pieces(reply: Reply, wire: Wire) -> AsyncIterator[bytes | None]:
    """Yield the bytes of each write; None cuts the connection."""
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


def _refuse(dialect: Dialect, refusal: Refusal, request: web.Request | None = None) -> web.StreamResponse:
    if refusal.status == 0 and request is not None and request.transport is not None:
        request.transport.close()
        return web.Response()
    body = refusal.body
    if body is None:
        body = msgspec.json.encode(dialect.error(refusal))
    headers = {"Content-Type": "application/json", **refusal.headers}
    return web.Response(status=refusal.status, body=body, headers=headers)


async def _json(request: web.Request) -> dict[str, Any]:
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


def _headers(request: web.Request) -> Mapping[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A fake model server that repeats the user's last message.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes any free port (default: 0)")
    parser.add_argument(
        "--tokens", type=int, default=0, help="pieces of each answer; 0: one per word (default: 0)"
    )
    parser.add_argument(
        "--delay-ms", type=float, default=0, help="duration of each answer, in ms (default: 0)"
    )
    for fault in Faults.__struct_fields__:
        parser.add_argument(
            f"--{fault}",
            type=float,
            default=0,
            help=f"share of answers with the fault {fault!r}, 0 to 1 (default: 0)",
        )
    parser.add_argument("--seed", type=int, default=0, help="selects the answers with a fault (default: 0)")
    return parser.parse_args(argv)


async def serve(argv: Sequence[str] | None = None) -> None:
    """Run until cancelled. The first line of the output is the address."""
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
