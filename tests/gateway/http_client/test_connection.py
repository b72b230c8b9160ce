"""The parser of responses, held against servers that are slow, broken or hostile."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http_client import ConnectionLostError, HttpError, MalformedResponseError
from gateway.http_client.connection import (
    BUFFER_LIMIT,
    HEADER_COUNT_LIMIT,
    OVERHEAD_LIMIT,
    Connection,
    Response,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"


class Wire(asyncio.Transport):
    """The transport of a connection whose server is the test."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._closing = False
        self.paused = False
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Exchange:
    """One request, and what came of it."""

    def __init__(self) -> None:
        self.freed: list[bool] = []
        self.connection = Connection(lambda _, keep: self.freed.append(keep))
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)

    def feed(self, *pieces: bytes, end: bool = False) -> None:
        for piece in pieces:
            if not self.wire.is_closing():
                self.connection.data_received(piece)
        if end:
            self.wire.close()

    async def response(self, *pieces: bytes, end: bool = False) -> Response:
        asyncio.get_running_loop().call_soon(lambda: self.feed(*pieces, end=end))
        return await self.connection.exchange(REQUEST, None, 5)


async def body_of(response: Response) -> bytes:
    pieces = []
    while piece := await response.read(5):
        pieces.append(piece)
    return b"".join(pieces)


async def outcome(pieces: Iterable[bytes]) -> tuple[object, ...]:
    """Status, headers, the body as far as it came, and the error."""
    got, status, headers = b"", 0, {}
    try:
        response = await Exchange().response(*pieces, end=True)
        status, headers = response.status, dict(response.headers)
        while piece := await response.read(5):
            got += piece
    except HttpError as error:
        return status, headers, got, type(error)
    return status, headers, got, None


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place for place in cuts if place < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(places)]


WELL_FORMED = {
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    + CHUNKED
    + b'\r\n3;a="b"\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n': b"abcde",
    OK + b"Content-Length: 5\r\n\r\nabcde": b"abcde",
    OK + b"content-length: 0\r\n\r\n": b"",
    OK + b"\r\nuntil the end": b"until the end",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok": b"ok",
    b"HTTP/1.1 204 None\r\n\r\n": b"",
    b"HTTP/1.1 304 Same\r\nContent-Length: 99\r\n\r\n": b"",
    OK
    + b"Content-Encoding: gzip\r\nContent-Length: 26\r\n\r\n"
    + gzip.compress(b"abcdef", mtime=0): b"abcdef",
    CHUNKED
    + b"Content-Encoding: gzip\r\n\r\n"
    + b"".join(
        b"1\r\n%c\r\n" % byte for byte in gzip.compress(b"ab" * 50, mtime=0) + gzip.compress(b"c", mtime=0)
    )
    + b"0\r\n\r\n": b"ab" * 50 + b"c",
}


@pytest.mark.parametrize("data", WELL_FORMED)
async def test_a_response_reads_the_same_cut_at_every_byte(data: bytes) -> None:
    whole = await outcome([data])
    assert whole[2:] == (WELL_FORMED[data], None)
    assert await outcome(bytes([byte]) for byte in data) == whole
    for place in range(len(data)):
        assert await outcome(cut(data, [place])) == whole


BLOCKS = (
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 500 No\r\n",
    b"HTTP/1.1 204 None\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Connection: close\r\n",
    b"X: a\r\n",
    b" folded\r\n",
    b"\r\n",
    b"\n",
    b"abc",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"\x00\xff",
    b"",
)


@given(
    st.lists(st.one_of(st.sampled_from(BLOCKS), st.binary(max_size=4)), max_size=10).map(b"".join),
    st.lists(st.integers(0, 200), max_size=8),
)
@example(OK + b"\r\nabc", [19])
async def test_garbage_reads_the_same_wherever_it_is_cut(data: bytes, cuts: list[int]) -> None:
    assert await outcome(cut(data, cuts)) == await outcome([data])


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"Transfer-Encoding: identity\r\n\r\nabc",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        OK + b"Content-Length: 3, 3\r\n\r\nabc",
        OK + b"Content-Length: -1\r\n\r\nabc",
        OK + b"Content-Length: +3\r\n\r\nabc",
        OK + b"Content-Length: 0x3\r\n\r\nabc",
        OK + b"Content-Length: 99999999999999999999\r\n\r\nabc",
        OK + b"X: a\r\n folded\r\n\r\n",
        OK + b"X : a\r\n\r\n",
        OK + b"X: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc",
        b"HTTP/2.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 099 Odd\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
        b"SSH-2.0-OpenSSH\r\n",
        OK + b"X: " + b"a" * OVERHEAD_LIMIT,
        OK + b"X: a\r\n" * (HEADER_COUNT_LIMIT + 1) + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (OVERHEAD_LIMIT // 20),
    ],
)
async def test_a_head_that_can_be_read_in_two_ways_or_without_end_is_refused(data: bytes) -> None:
    exchange = Exchange()
    with pytest.raises(MalformedResponseError):
        await exchange.response(data)
    assert exchange.freed[0] is False
    assert exchange.wire.is_closing()


@pytest.mark.parametrize(
    "rest",
    [
        b"ffffffffffffffffff\r\nabc",
        b"3\r\nabcd\r\n",
        b"-3\r\nabc\r\n",
        b"3\nabc\n0\n\n",
        b"3;" + b"x" * (OVERHEAD_LIMIT + 1),
        b"0\r\n" + b"T: v\r\n" * (OVERHEAD_LIMIT // 4),
    ],
)
async def test_a_body_that_breaks_the_framing_fails_after_what_came(rest: bytes) -> None:
    exchange = Exchange()
    response = await exchange.response(CHUNKED + b"\r\n2\r\nok\r\n")
    assert await response.read() == b"ok"
    exchange.feed(*cut(rest, range(0, len(rest), 1000)))
    with pytest.raises(MalformedResponseError):
        await body_of(response)
    assert exchange.freed[0] is False


@pytest.mark.parametrize("head", [CHUNKED + b"\r\n5\r\n", OK + b"Content-Length: 5\r\n\r\n"])
async def test_a_body_that_ends_early_fails_after_what_came(head: bytes) -> None:
    response = await Exchange().response(head + b"ab", end=True)
    assert await response.read() == b"ab"
    with pytest.raises(ConnectionLostError):
        await response.read()


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 2", OK, b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_connection_that_ends_before_the_head_is_lost(data: bytes) -> None:
    with pytest.raises(ConnectionLostError):
        await Exchange().response(data, end=True)


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (OK + b"Content-Length: 2\r\n\r\nok", True),
        (CHUNKED + b"\r\n2\r\nok\r\n0\r\n\r\n", True),
        (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (OK + b"Content-Length: 2\r\n\r\nok" + OK + b"Content-Length: 2\r\n\r\nno", False),
        (OK + b"Content-Length: 2\r\n\r\nokay", False),
    ],
)
async def test_a_connection_is_kept_only_if_nothing_follows(data: bytes, kept: bool) -> None:
    exchange = Exchange()
    assert await body_of(await exchange.response(data)) == b"ok"
    assert exchange.freed[0] is kept
    assert exchange.wire.is_closing() is not kept


async def test_bytes_without_a_request_close_the_connection() -> None:
    exchange = Exchange()
    await body_of(await exchange.response(OK + b"Content-Length: 0\r\n\r\n"))
    exchange.feed(OK + b"Content-Length: 4\r\n\r\nevil")
    assert not exchange.connection.is_open
    with pytest.raises(ConnectionLostError):
        await exchange.response()


async def test_a_slow_reader_stops_the_server() -> None:
    exchange = Exchange()
    piece = b"%x\r\n%b\r\n" % (BUFFER_LIMIT, b"x" * BUFFER_LIMIT)
    response = await exchange.response(CHUNKED + b"\r\n", piece)
    assert not exchange.wire.paused
    exchange.feed(b"1\r\ny\r\n")
    assert exchange.wire.paused
    assert len(await response.read()) == BUFFER_LIMIT + 1
    assert not exchange.wire.paused


async def test_a_gzip_bomb_arrives_in_bounded_pieces() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    response = await Exchange().response(head, bomb)
    sizes = [len(await response.read()) for _ in range(10)]
    assert max(sizes) <= 256 * 1024


@pytest.mark.parametrize(
    ("encoding", "data", "error"),
    [
        (b"br", b"abc", "'br'"),
        (b"deflate", zlib.compress(b"abc"), "'deflate'"),
        (b"gzip, gzip", b"abc", "'gzip, gzip'"),
        (b"gzip", b"no gzip", "damaged"),
        (b"gzip", gzip.compress(b"abc", mtime=0)[:-3], "incomplete"),
    ],
)
async def test_an_encoding_that_cannot_be_read_fails_the_body_and_not_the_status(
    encoding: bytes, data: bytes, error: str
) -> None:
    head = b"HTTP/1.1 503 Busy\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (encoding, len(data))
    response = await Exchange().response(head, data)
    assert response.status == 503
    with pytest.raises(HttpError, match=error):
        await body_of(response)


async def test_silence_times_out_before_and_after_the_head() -> None:
    with pytest.raises(TimeoutError):
        await Exchange().connection.exchange(REQUEST, None, 0.02)
    exchange = Exchange()
    response = await exchange.response(CHUNKED + b"\r\n2\r\nok\r\n")
    assert await response.read(0.02) == b"ok"
    with pytest.raises(TimeoutError):
        await response.read(0.02)


async def test_a_released_response_keeps_the_connection_if_it_ends_soon() -> None:
    ended, silent = Exchange(), Exchange()
    for exchange in (ended, silent):
        response = await exchange.response(CHUNKED + b"\r\n2\r\nok\r\n")
        await response.read()
        await response.release()
        response.close()
        assert exchange.connection.is_open
    ended.feed(b"0\r\n\r\n")
    async with asyncio.timeout(60):
        while silent.connection.is_open:
            await asyncio.sleep(0.01)
    assert (ended.freed, silent.freed[0]) == ([True], False)


async def test_a_new_response_never_has_bytes_of_the_old_one() -> None:
    exchange = Exchange()
    first = await exchange.response(OK + b"Content-Length: 3\r\n\r\nold")
    second = await exchange.response(OK + b"Content-Length: 3\r\n\r\nnew")
    assert (await body_of(second), await body_of(first)) == (b"new", b"old")
