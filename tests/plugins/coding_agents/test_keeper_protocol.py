"""The client and the keepers of released versions, whose frames are recorded here.

A keeper outlives upgrades of the gateway, so the client has to work with each version that was released. Do
not change the bytes of a released version; add those of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugins.coding_agents.keeper_client import (
    Exit,
    Hello,
    InputFullError,
    KeeperClient,
    KeeperError,
    KeeperKeyError,
    ProgramEndedError,
    Stream,
)

KEY = bytes(range(32))
BOOT_ID = "0c9a2a54-6d7c-4f0e-9f4b-0a3b8f6f1d2e"

TO_KEEPER = {
    "attach": "0000002b 41" + KEY.hex() + "0000000000000102 0001 01",
    "write": "0000000b 57 0000000000000007 79 65 73",
    "resize": "00000004 52 0032 0064",
    "signal": "00000001 4b 0f",
    "acknowledge": "00000000 51",
    "bytes": "00000006 42 00000001 6f6b",
    "grant": "00000008 4e 00000001 00004000",
    "end": "00000004 46 00000001",
    "close": "00000004 5a 00000001",
}
"""Frames of version 1 to the keeper: the kinds A, W, R, K, Q, B, N, F and Z."""

FROM_KEEPER = {
    "hello": "00000042 48 0001 0000000000000100 0000000000000108 0000162e 000001930a1b2c3d"
    + BOOT_ID.encode().hex(),
    "output": "0000000d 4f 0000000000000102 68656c6c6f",
    "written": "00000008 44 0000000000000007",
    "exit": "0000000c 58 fffffff7 000001930a1b2c99",
    "wrong key": "00000013 45 0001 0000000000000000 77726f6e67206b6579",
    "wrong offset": "0000000d 45 0002 0000000000000000 626164",
    "input full": "0000000e 45 0004 0000000000000007 66756c6c",
    "still runs": "0000000e 45 0005 0000000000000000 72756e73",
    "has ended": "0000000f 45 0007 0000000000000007 656e646564",
    "new stream": "00000004 53 00000001",
    "bytes": "0000000f 42 00000001 63726564656e7469616c0a",
    "window": "00010004 42 00000001" + "78" * 65536,
    "grant": "00000008 4e 00000001 00000005",
    "end": "00000004 46 00000001",
    "close": "00000004 5a 00000001",
    "unknown": "00000003 7e 616263",
}
"""Frames of version 1 from the keeper: the kinds H, O, D, X, E, S, B, N, F, Z, and one of a later version."""


class Recorded:
    """A keeper that plays recorded frames, and a client of it."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.seen: asyncio.Queue[object] = asyncio.Queue()
        self.connected = asyncio.Event()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.play("hello", "output")
        self.connected.set()

    def play(self, *names: str) -> None:
        for name in names:
            self.writer.write(bytes.fromhex(FROM_KEEPER[name]))

    async def expect(self, name: str) -> None:
        frame = bytes.fromhex(TO_KEEPER[name])
        async with asyncio.timeout(30):
            assert await self.reader.readexactly(len(frame)) == frame, name

    async def next(self) -> object:
        async with asyncio.timeout(30):
            return await self.seen.get()

    async def attach(self, folder: Path, key: bytes = KEY) -> KeeperClient:
        return await KeeperClient.attach(
            folder,
            key,
            0x102,
            on_output=lambda offset, data: self.seen.put_nowait((offset, data)),
            on_exit=self.seen.put_nowait,
            on_gone=lambda: self.seen.put_nowait("gone"),
            on_stream=self.seen.put_nowait,
        )


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[tuple[Recorded, KeeperClient]]:
    keeper = Recorded()
    async with await asyncio.start_unix_server(keeper.accept, folder / "keeper.sock"):
        client = await keeper.attach(folder)
        await keeper.connected.wait()
        await keeper.expect("attach")
        yield keeper, client
        await client.close()
        keeper.writer.close()


async def test_a_client_attaches_types_and_sees_the_exit(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (keeper, client):
        assert client.hello == Hello(1, 0x100, 0x108, 5678, 0x1930A1B2C3D, BOOT_ID)
        assert await keeper.next() == (0x102, b"hello")
        async with asyncio.TaskGroup() as group:
            written = group.create_task(client.write(7, b"yes"))
            await keeper.expect("write")
            assert not written.done()
            keeper.play("unknown", "written")
        client.resize(50, 100)
        await keeper.expect("resize")
        client.signal(15)
        await keeper.expect("signal")
        keeper.play("exit")
        assert await keeper.next() == Exit(-9, 0x1930A1B2C99)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.acknowledge_exit())
            await keeper.expect("acknowledge")
            keeper.writer.close()
        assert keeper.seen.empty()


@pytest.mark.parametrize(
    ("name", "error"), [("input full", InputFullError), ("has ended", ProgramEndedError)]
)
async def test_input_that_a_keeper_refuses_is_an_error(
    tmp_path: Path, name: str, error: type[Exception]
) -> None:
    async with recorded(tmp_path) as (keeper, client):
        for names in ((name,), ("written",)):
            async with asyncio.TaskGroup() as group:
                typed = group.create_task(refused(client, error if names == (name,) else None))
                await keeper.expect("write")
                keeper.play(*names)
            assert typed.done()


async def refused(client: KeeperClient, error: type[Exception] | None) -> None:
    if error is None:
        await client.write(7, b"yes")
        return
    with pytest.raises(error):
        await client.write(7, b"yes")


async def test_an_exit_that_cannot_be_acknowledged_yet_is_an_error(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (keeper, client):

        async def acknowledge() -> None:
            with pytest.raises(KeeperError, match="runs"):
                await client.acknowledge_exit()

        async with asyncio.TaskGroup() as group:
            group.create_task(acknowledge())
            await keeper.expect("acknowledge")
            keeper.play("still runs")


@pytest.mark.parametrize(("name", "error"), [("wrong key", KeeperKeyError), ("wrong offset", KeeperError)])
async def test_a_refused_attachment_is_an_error(tmp_path: Path, name: str, error: type[Exception]) -> None:
    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex(FROM_KEEPER[name]))
        writer.close()

    async with await asyncio.start_unix_server(refuse, tmp_path / "keeper.sock"):
        with pytest.raises(error):
            await Recorded().attach(tmp_path)


async def test_a_stream_has_a_window_in_each_direction(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (keeper, _):
        await keeper.next()
        keeper.play("new stream", "bytes")
        stream = await keeper.next()
        assert isinstance(stream, Stream)
        assert await stream.readline() == b"credential\n"
        keeper.play("window")
        read = b""
        while len(read) < 0x4000 - len("credential\n"):
            read += await stream.read(0x4000 - len("credential\n") - len(read))
        await keeper.expect("grant")
        await stream.write(b"ok")
        await keeper.expect("bytes")
        async with asyncio.TaskGroup() as group:
            written = group.create_task(stream.write(bytes(65536 - 2 + 5)))
            await keeper.reader.readexactly(9 + 65536 - 2)
            assert not written.done()
            keeper.play("grant")
            assert await keeper.reader.readexactly(9 + 5) == bytes.fromhex("00000009 42 00000001 0000000000")
        stream.write_eof()
        await keeper.expect("end")
        await stream.close()
        await keeper.expect("close")


async def test_streams_end_from_either_side(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (keeper, _):
        await keeper.next()
        keeper.play("new stream", "bytes", "end")
        stream = await keeper.next()
        assert isinstance(stream, Stream)
        assert (await stream.read(), await stream.read()) == (b"credential\n", b"")
        await stream.close()
        await keeper.expect("end")
        keeper.play("new stream", "close")
        stream = await keeper.next()
        assert isinstance(stream, Stream)
        with pytest.raises(ConnectionResetError):
            await stream.read()


async def test_a_keeper_that_ends_is_gone(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (keeper, _):
        await keeper.next()
        keeper.writer.close()
        assert await keeper.next() == "gone"
