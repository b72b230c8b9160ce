"""Streamed responses: framing, and clients that disconnect or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.server.responses import EventStream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def asked(handler: Handler, version: str = "1.1") -> AsyncGenerator[Connection]:
    """Serve a handler, send it a request, and yield the connection."""
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    try:
        async with asyncio.timeout(60):
            writer.write(f"GET / HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            yield reader, writer
    finally:
        writer.close()
        await runner.cleanup()


async def twice(request: web.Request) -> web.StreamResponse:
    stream = EventStream(request, {"X-Session-Id": "s"})
    assert not stream.begun
    await stream.begin(b"data: 1\n\n")
    assert not stream.put(b"data: 23\n\n")
    assert (stream.begun, stream.writes) == (True, 2)
    return stream.response


async def test_what_is_written_is_framed_as_chunks() -> None:
    async with asked(twice) as (reader, _):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert b"X-Session-Id: s" in head
    assert body == b"9\r\ndata: 1\n\n\r\na\r\ndata: 23\n\n\r\n0\r\n\r\n"


async def test_a_client_that_knows_no_chunks_gets_none() -> None:
    async with asked(twice, version="1.0") as (reader, _):
        _, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert body == b"data: 1\n\ndata: 23\n\n"


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    full = asyncio.Event()
    sent: list[bytes] = []

    async def flood(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request)
        await stream.begin(b"data: 1\n\n")
        while not stream.put(b"data: %b\n\n" % (b"x" * 50_000)):
            sent.append(b"")
        full.set()
        await stream.drain()
        stream.put(b"data: end\n\n")
        return stream.response

    async with asked(flood) as (reader, _):
        await full.wait()
        body = await reader.read()
    assert body.count(b"data: x") == len(sent) + 1
    assert body.endswith(b"data: end\n\n\r\n0\r\n\r\n")


async def test_writing_to_a_client_that_left_is_a_broken_connection() -> None:
    left = asyncio.Event()
    told: list[str] = []

    async def late(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request)
        await stream.begin(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        with pytest.raises(ConnectionResetError) as failed:
            stream.put(b"data: 2\n\n")
        told.append(str(failed.value))
        left.set()
        return stream.response

    async with asked(late):
        await left.wait()
    assert told == ["the client disconnected"]
