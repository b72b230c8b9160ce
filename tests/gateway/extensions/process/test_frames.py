"""Frames over a real socket: calls, errors, descriptors, limits, and what ends a connection."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.errors import ToolError
from gateway.extensions.process.frames import (
    MOST_BYTES,
    MOST_EVENTS,
    MOST_FRAMES,
    Connection,
    ProcessEnded,
    ProtocolViolation,
    RemoteError,
    Reply,
    Serve,
)


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


async def echo(_method: str, params: Any) -> Any:
    return params


class Talk:
    """A connection and the other end of its socket."""

    def __init__(self, serve: Serve, in_flight: int) -> None:
        self.other, ours = socket.socketpair()
        self.other.setblocking(False)
        self.connection = Connection(ours, serve, in_flight=in_flight)
        self.run: asyncio.Task[None] | None = None

    async def send(self, value: Any) -> None:
        await self.raw(framed(msgspec.json.encode(value)))

    async def raw(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.other, data)

    async def receive(self) -> Any:
        size = struct.unpack(">I", await self.read(4))[0]
        return msgspec.json.decode(await self.read(size))

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(self.other, size - len(data))
        return data

    async def violation(self) -> str:
        assert self.run is not None
        with pytest.raises(ProtocolViolation) as caught:
            await self.run
        return str(caught.value)


@asynccontextmanager
async def talking(serve: Serve = echo, in_flight: int = 64) -> AsyncIterator[Talk]:
    talk = Talk(serve, in_flight)
    talk.run = asyncio.ensure_future(talk.connection.run())
    await asyncio.sleep(0)
    try:
        yield talk
    finally:
        talk.other.close()
        await asyncio.wait([talk.run])
        if not talk.run.cancelled():
            talk.run.exception()


async def test_calls_go_in_both_directions_at_once() -> None:
    async with talking() as talk:
        first = asyncio.ensure_future(talk.connection.call("hook", {"name": "x"}, 5))
        second = asyncio.ensure_future(talk.connection.call("tool", {}, 5))
        await talk.send({"i": 7, "m": "kv.get", "p": [1]})
        calls = [await talk.receive(), await talk.receive()]
        assert [(call["i"], call["m"]) for call in calls] == [(1, "hook"), (2, "tool")]
        assert 0 < calls[0]["d"] <= 5000
        assert await talk.receive() == {"i": 7, "r": [1]}
        await talk.send({"i": 2, "r": "second"})
        await talk.send({"i": 1, "e": {"name": "Block", "message": "no"}})
        assert await second == "second"
        with pytest.raises(RemoteError, match="no") as caught:
            await first
        assert caught.value.remote == "Block"


async def test_an_error_of_the_host_is_sent_by_its_name_and_a_failure_without_details() -> None:
    async def serve(method: str, _params: Any) -> Any:
        raise ToolError("not here") if method == "refused" else ValueError("a secret")

    async with talking(serve) as talk:
        await talk.send({"i": 1, "m": "refused", "p": {}})
        assert await talk.receive() == {"i": 1, "e": {"name": "ToolError", "message": "not here"}}
        await talk.send({"i": 2, "m": "broken", "p": {}})
        failure = (await talk.receive())["e"]
        assert failure["name"] == "InternalError"
        assert "secret" not in failure["message"]


async def test_a_result_brings_a_descriptor_which_is_then_closed_here() -> None:
    reading, writing = os.pipe()

    async def serve(_method: str, _params: Any) -> Reply:
        return Reply({"size": 0}, reading)

    async with talking(serve) as talk:
        await talk.send({"i": 1, "m": "fs.open", "p": {}})
        await asyncio.sleep(0.05)
        talk.other.setblocking(True)
        data, descriptors, _, _ = socket.recv_fds(talk.other, 1000, 4)
        assert msgspec.json.decode(data[4:]) == {"i": 1, "r": {"size": 0}, "f": 1}
        os.write(writing, b"content")
        assert os.read(descriptors[0], 10) == b"content"
        os.close(descriptors[0])
        with pytest.raises(BrokenPipeError):
            os.write(writing, b"nobody reads it any more")
        os.close(writing)


async def test_a_call_without_an_answer_expires_is_cancelled_there_and_may_be_answered_late() -> None:
    async with talking() as talk:
        with pytest.raises(TimeoutError):
            await talk.connection.call("slow", {}, 0.01)
        assert (await talk.receive())["m"] == "slow"
        assert await talk.receive() == {"m": "cancel", "p": {"i": 1}}
        await talk.send({"i": 1, "r": None})
        await talk.send({"i": 9, "m": "still", "p": "here"})
        assert await talk.receive() == {"i": 9, "r": "here"}
        await talk.send({"i": 1, "r": None})
        assert "the call 1" in await talk.violation()


async def test_the_end_of_the_socket_fails_all_calls_at_once() -> None:
    async with talking(in_flight=1) as talk:
        calls = [asyncio.ensure_future(talk.connection.call("x", {}, 60)) for _ in range(3)]
        await talk.receive()
        talk.other.close()
        for call in calls:
            with pytest.raises(ProcessEnded):
                await call
        with pytest.raises(ProcessEnded):
            await talk.connection.call("x", {}, 60)


async def test_calls_beyond_the_limit_wait_and_those_of_the_other_side_are_refused() -> None:
    gate = asyncio.Event()

    async def serve(_method: str, _params: Any) -> None:
        await gate.wait()

    async with talking(serve, in_flight=2) as talk:
        calls = [asyncio.ensure_future(talk.connection.call("x", {}, 5)) for _ in range(3)]
        assert [(await talk.receive())["i"] for _ in range(2)] == [1, 2]
        for number in (1, 2, 3):
            await talk.send({"i": number, "m": "slow", "p": {}})
        assert (await talk.receive())["e"]["name"] == "OverloadedError"
        await talk.send({"i": 1, "r": 1})
        assert (await talk.receive())["i"] == 3
        gate.set()
        await talk.send({"i": 2, "r": 2})
        await talk.send({"i": 3, "r": 3})
        assert await asyncio.gather(*calls) == [1, 2, 3]


async def test_events_beyond_256_drop_the_oldest_and_calls_stay() -> None:
    async with talking() as talk:
        large = {"text": "x" * 500_000}
        for _ in range(4):
            talk.connection.notify("fill", large)
        for number in range(MOST_EVENTS + 100):
            talk.connection.notify("event", {"n": number})
        call = asyncio.ensure_future(talk.connection.call("hook", {}, 5))
        await asyncio.sleep(0)
        assert talk.connection.dropped >= 100
        seen: list[Any] = []
        while not seen or seen[-1].get("m") != "hook":
            seen.append(await talk.receive())
        numbers = [frame["p"]["n"] for frame in seen if frame["m"] == "event"]
        assert numbers == sorted(numbers)
        assert numbers[-1] == MOST_EVENTS + 99
        assert len(numbers) <= MOST_EVENTS
        await talk.send({"i": 1, "r": None})
        await call


@pytest.mark.parametrize(
    "data",
    [
        b'{"i":1,"r":2}',
        b'{"i":1,"m":"x","p":NaN}',
        b'{"i":1,"m":"x","p":Infinity}',
        b'{"i":1,"m":"x","p":"\\ud800"}',
        b'{"i":1,"m":"x","p":"\xff"}',
        b'{"i":1,"m":"x","p":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"i":1,"m":"x","p":' + b"9" * 500_000 + b"}",
        b'{"i":1}',
        b'{"i":1,"m":"x","r":2}',
        b'{"i":"1","m":"x"}',
        b'{"i":1,"m":"x","z":2}',
        b"[]",
        b"",
        b"\x80\x04K\x01.",
    ],
)
async def test_what_is_not_a_frame_ends_the_connection(data: bytes) -> None:
    async with talking() as talk:
        await talk.raw(framed(data))
        assert await talk.violation()


async def test_a_frame_of_one_mebibyte_passes_and_one_byte_more_ends_the_connection() -> None:
    async with talking() as talk:
        head = b'{"i":1,"m":"x","p":"'
        await talk.raw(framed(head + b"a" * (MOST_BYTES - len(head) - 2) + b'"}'))
        assert len((await talk.receive())["r"]) == MOST_BYTES - len(head) - 2
        await talk.raw(struct.pack(">I", MOST_BYTES + 1))
        assert "1,048,577 bytes" in await talk.violation()


async def test_an_announced_gibibyte_is_refused_before_it_arrives() -> None:
    async with talking() as talk:
        await talk.raw(struct.pack(">I", 1 << 30))
        assert "1,073,741,824" in await talk.violation()


async def test_a_flood_of_events_ends_the_connection() -> None:
    async with talking() as talk:
        one = framed(b'{"m":"log","p":1}')
        await talk.raw(one * (2 * MOST_FRAMES + 10))
        assert "calls and events in a second" in await talk.violation()


async def test_calls_whose_answers_are_not_read_end_the_connection() -> None:
    served = asyncio.Semaphore(0)

    async def large(_method: str, _params: Any) -> Any:
        served.release()
        return "x" * (MOST_BYTES - 100)

    async with talking(large, in_flight=2) as talk:
        for number in range(3):
            await talk.send({"i": number, "m": "tools.list"})
            await served.acquire()
        assert await talk.violation() == "it does not read the answers to its calls"
    async with talking(large, in_flight=2) as talk:
        for number in range(4):
            await talk.send({"i": number, "m": "tools.list"})
            assert (await talk.receive())["i"] == number


@given(st.binary(max_size=200), st.integers(1, 5))
def test_any_bytes_are_frames_or_a_violation(data: bytes, pieces: int) -> None:
    async def run() -> None:
        async with talking() as talk:
            size = len(data) // pieces + 1
            for at in range(0, len(data), size):
                await talk.raw(data[at : at + size])
            await talk.raw(framed(data))

    asyncio.run(run())
