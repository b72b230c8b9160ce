"""The readers of event streams, and what a stream does when the other side falls silent."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.contract.errors import DeltaParseError, StreamAbortedError, StreamTimeoutError
from gateway.http_client import ClientKind, open_client
from gateway.provider_http.transport import EventStream, NDJSONReader, SSEReader, StreamEvent

ENDS = (b"\n", b"\r\n", b"\r")


def read_all(reader: SSEReader | NDJSONReader, *chunks: bytes) -> list[tuple[bytes, bytes]]:
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return [(event.name, event.data) for event in [*events, *reader.finish()]]


@pytest.mark.parametrize("end", ENDS)
def test_002_31_sse_reads_every_kind_of_line_end(end: bytes) -> None:
    stream = end.join(
        (b": hello", b"event: greet", b"data: one", b"data: two", b"id: 7", b"", b"data:three", b"", b"")
    )

    assert read_all(SSEReader(), stream) == [(b"greet", b"one\ntwo"), (b"", b"three")]


def test_002_31_sse_gives_out_an_event_that_the_end_of_the_stream_leaves_open() -> None:
    assert read_all(SSEReader(), b"data: one\n\ndata: tw", b"o") == [(b"", b"one"), (b"", b"two")]


def test_sse_gives_an_event_out_at_once_when_its_blank_line_ends_in_a_carriage_return() -> None:
    reader = SSEReader()

    assert reader.feed(b"data: one\r\r") == [StreamEvent(b"one")]
    assert reader.feed(b"\ndata: two\r\n\r") == [StreamEvent(b"two")]
    assert reader.feed(b"\n") == []
    assert reader.finish() == []


def test_sse_passes_over_comments_unknown_fields_and_a_byte_order_mark() -> None:
    stream = b"\xef\xbb\xbfdata: one\nretry: 5\nmood: fine\n:\n\nevent: alone\n\ndata: two\n\n"

    assert read_all(SSEReader(), stream) == [(b"", b"one"), (b"", b"two")]


@given(
    events=st.lists(st.lists(st.text("abcä: ", max_size=8), min_size=1, max_size=3), max_size=6),
    end=st.sampled_from(ENDS),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_002_31_sse_reads_the_same_wherever_the_bytes_are_cut(
    events: list[list[str]], end: bytes, cuts: list[int]
) -> None:
    stream = b"".join(b"".join(b"data: " + text.encode() + end for text in event) + end for event in events)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in itertools.pairwise(places)]

    assert read_all(SSEReader(), *chunks) == [(b"", "\n".join(event).encode()) for event in events]


_LINES = ("data: a", "data: b", "data:", "data: ", "event: n", ": hello", "id: 7", "data: data: a", "")
_SOME_ENDS = ("\n", "\n\n", "\r", "\r\n", "")


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(_LINES), st.sampled_from(_SOME_ENDS)), max_size=5), max_size=4
    )
)
@example([[("data: a", "\r"), ("data: b", "\n\n")]])
@example([[("data: a", "\n"), ("data: b", "\n\n")]])
@example([[("event: n", "\n")], [("data: a", "\n\n")]])
@example([[("data: b", "")], [("data: a", "\n\n")]])
@example([[("data: b", "\r")], [("data: a", "\n\n")]])
def test_sse_reads_whole_events_as_it_reads_single_bytes(chunks: list[list[tuple[str, str]]]) -> None:
    whole = ["".join(line + end for line, end in chunk).encode() for chunk in chunks]
    single = [bytes([byte]) for byte in b"".join(whole)]

    assert read_all(SSEReader(), *whole) == read_all(SSEReader(), *single)


@pytest.mark.parametrize("end", ENDS)
def test_002_31_ndjson_skips_blank_lines_and_needs_no_last_end(end: bytes) -> None:
    stream = end.join((b'{"a":1}', b"", b'  {"b":2} ', b'{"c":3}'))

    assert [data for _, data in read_all(NDJSONReader(), stream[:9], stream[9:])] == [
        b'{"a":1}',
        b'{"b":2}',
        b'{"c":3}',
    ]


@pytest.mark.parametrize("chunk", [b"x" * 101, b"data: " + b"x" * 96 + b"\n"])
def test_a_line_longer_than_the_bound_is_refused(chunk: bytes) -> None:
    with pytest.raises(DeltaParseError, match="more than 100 bytes"):
        SSEReader(100).feed(chunk)


def test_a_line_that_grows_in_small_chunks_is_refused_at_the_bound() -> None:
    reader = NDJSONReader(100)
    for _ in range(100):
        reader.feed(b"x")

    with pytest.raises(DeltaParseError):
        reader.feed(b"x")


def test_an_event_of_many_short_lines_is_bounded_too() -> None:
    with pytest.raises(DeltaParseError, match="an event of more"):
        SSEReader(100).feed(b"data: 1234567890\n" * 11)


@asynccontextmanager
async def stream_from(
    kind: ClientKind,
    *moves: bytes | asyncio.Event,
    idle: float = 5,
    limit: int = 1_000_000,
    pace: float = 0,
) -> AsyncGenerator[EventStream]:
    """A stream of what a server writes; an event is waited for, and no end ever comes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for move in moves:
            if isinstance(move, asyncio.Event):
                await move.wait()
            elif move:
                await response.write(move)
                await asyncio.sleep(pace)
            else:
                assert request.transport is not None
                request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        port = runner.addresses[0][1]
        client = open_client(kind)
        response = await client.request("GET", f"http://127.0.0.1:{port}/", {}, None, 5)
        stream = EventStream(response, "sse", idle, limit)
        yield stream
        stream.close()
        await client.close()
    finally:
        await runner.cleanup()


async def read_to_end(stream: EventStream) -> None:
    while await stream.read() is not None:
        pass


@pytest.fixture(params=["httptools", "aiohttp"])
def kind(request: pytest.FixtureRequest) -> ClientKind:
    return request.param


async def test_events_that_arrive_together_are_read_together(kind: ClientKind) -> None:
    gate = asyncio.Event()
    async with stream_from(kind, b"data: a\n\ndata: b\n\n", gate, b"data: c\n\n") as stream:
        assert await stream.read() == [StreamEvent(b"a"), StreamEvent(b"b")]
        gate.set()
        assert await stream.read() == [StreamEvent(b"c")]
        assert await stream.read() == []
        assert await stream.read() is None


async def test_002_31_silence_is_a_timeout_and_not_a_cancellation(kind: ClientKind) -> None:
    async with stream_from(kind, b"data: a\n\n", asyncio.Event(), idle=0.05) as stream:
        await stream.read()
        with pytest.raises(StreamTimeoutError):
            await stream.read()


async def test_002_31_being_cancelled_while_waiting_is_a_cancellation_and_not_a_timeout(
    kind: ClientKind,
) -> None:
    async with stream_from(kind, b"data: a\n\n", asyncio.Event(), idle=5) as stream:
        await stream.read()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(stream.read())
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()


async def test_002_31_any_byte_is_a_sign_of_life(kind: ClientKind) -> None:
    comments = [b": still here\n"] * 30
    async with stream_from(kind, *comments, asyncio.Event(), idle=0.5, pace=0.02) as stream:
        for _ in comments:
            assert await stream.read() == []
        with pytest.raises(StreamTimeoutError):
            await stream.read()


async def test_a_slow_reader_is_not_taken_for_a_silent_server(kind: ClientKind) -> None:
    gate = asyncio.Event()
    async with stream_from(kind, b"data: a\n\n", gate, b"data: b\n\n", idle=0.05) as stream:
        await stream.read()
        await asyncio.sleep(0.12)
        gate.set()
        assert await stream.read() == [StreamEvent(b"b")]


async def test_a_broken_connection_is_named(kind: ClientKind) -> None:
    async with stream_from(kind, b"data: a\n\n", b"") as stream:
        await stream.read()
        with pytest.raises(StreamAbortedError):
            await stream.read()


async def test_a_stream_that_never_ends_is_ended(kind: ClientKind) -> None:
    async with stream_from(kind, *[b"data: 123456789\n\n"] * 50, limit=500) as stream:
        with pytest.raises(DeltaParseError, match="the stream exceeds"):
            await read_to_end(stream)


async def test_what_is_not_an_event_stream_is_named(kind: ClientKind) -> None:
    async with stream_from(kind, b"\x00\x01 what is this\n\n\xff") as stream:
        with pytest.raises(DeltaParseError, match="not an event stream"):
            await read_to_end(stream)
