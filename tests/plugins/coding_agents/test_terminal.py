"""The websocket of a terminal, over a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from gateway.testing.served import Served, serving, until
from plugins.coding_agents import CodingAgents
from plugins.coding_agents.keeper_client import KeeperClient, KeeperLaunch, start_keeper
from plugins.coding_agents.sessions import SpawnRequest
from tests.plugins.coding_agents.fake_session import RECORD, FakeAgents, FakeSession

Frame = dict[str, Any]


class Client:
    """A client of a terminal. ``rows`` are the rows as it has drawn them, by number."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, acknowledges: bool = True) -> None:
        self.socket = socket
        self.acknowledges = acknowledges
        self.rows: dict[int, str] = {}
        self.batches: list[Frame] = []
        self.state: Frame = {}

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_str(json.dumps({"type": kind, **fields}))

    async def next(self, kind: str) -> Frame:
        while True:
            async with asyncio.timeout(60):
                message = await self.socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                continue
            frame: Frame = json.loads(message.data)
            await self._note(frame)
            if frame["type"] == kind:
                return frame

    async def until_shown(self, text: str) -> None:
        while not any(text in row for row in self.rows.values()):
            await self.next("screen")

    async def driving(self) -> None:
        await self.send("drive")
        while not self.state.get("driving"):
            await self.next("state")

    async def _note(self, frame: Frame) -> None:
        if frame["type"] == "state":
            self.state = frame
        elif frame["type"] == "screen":
            self.batches.append(frame)
            self.rows |= {index: "".join(run[0] for run in runs) for index, runs in frame["rows"]}
            if self.acknowledges:
                await self.send("ack", n=frame["n"])


@asynccontextmanager
async def watching(served: Served, query: str = "view=rows", **how: Any) -> AsyncGenerator[Client]:
    url = f"{served.url}/api/coding-agents/{RECORD.id}/terminal?{query}"
    async with served.http.ws_connect(url) as socket:
        yield Client(socket, **how)


async def test_a_client_gets_the_screen_and_then_changed_rows_alone(tmp_path: Path) -> None:
    session = FakeSession()
    session.show(b"\x1b[1;32mone\x1b[0m\r\ntwo")
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as client:
        state = await client.next("state")
        assert (state["agent"], state["public_status"], state["driving"], state["ended"]) == (
            "shell",
            "running",
            False,
            False,
        )
        first = await client.next("screen")
        assert first["size"] == [10, 40]
        assert first["cursor"] == [1, 3]
        assert first["rows"][:2] == [[0, [["one", "f2 o"]]], [1, [["two", ""]]]]
        assert len(first["rows"]) == 10
        session.show(b"\r\nthree\x1b[?25l")
        second = await client.next("screen")
        assert (second["rows"], second["cursor"]) == ([[2, [["three", ""]]]], None)
        session.show(b"\r\x1b[2Kthree")  # drawn again, but the same
        session.show(b"\x1b[?25h")
        assert (await client.next("screen"))["rows"] == []


async def test_a_slow_link_gets_one_batch_at_a_time_with_the_latest_state(tmp_path: Path) -> None:
    session = FakeSession()
    async with (
        serving(tmp_path, FakeAgents(session)) as served,
        watching(served, acknowledges=False) as client,
    ):
        first = await client.next("screen")
        for number in range(500):
            session.show(b"\r%d" % number)
            await asyncio.sleep(0)
        await client.send("ack", n=first["n"] - 1)  # of no batch that waits
        await client.send("text", text="ends the reading of what was sent")
        assert (await client.next("refused"))["error_name"] == "TERMINAL_BUSY"
        assert len(client.batches) == 1
        await client.send("ack", n=first["n"])
        assert (await client.next("screen"))["rows"] == [[0, [["499", ""]]]]


async def test_one_client_types_at_a_time(tmp_path: Path) -> None:
    session = FakeSession()
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as second:
        async with watching(served) as first:
            await first.send("text", text="x")
            assert "only watches" in (await first.next("refused"))["message"]
            await first.driving()
            await second.send("drive")
            assert (await second.next("refused"))["error_name"] == "TERMINAL_BUSY"
            await first.send("text", text="ls ä")
            await first.send("key", name="enter")
            await second.until_shown("ls ä")
            await first.send("release")
            await first.next("state")
            await second.driving()
            await second.send("release")
            await first.driving()
        await until(lambda: session.watchers == 2)
        await second.driving()  # the first client left
        async with watching(served) as third:
            await third.send("drive", take=True)
            assert (await second.next("state"))["driving"] is False
            await second.send("text", text="y")
            assert "only watches" in (await second.next("refused"))["message"]
            await third.send("text", text="z")
            await third.until_shown("z")
            await second.send("release")  # of what it no longer has
            await third.send("key", name="backspace")
            await until(lambda: session.typed.endswith(b"\x7f"))
            assert session.typed == "ls ä\rz\x7f".encode()
        await until(lambda: session.watchers == 2)
        await second.driving()
        await second.send("key", name="ctrl+c")
        await until(lambda: session.typed == "ls ä\rz\x7f\x03".encode())


async def test_keys_and_pastes_are_those_that_the_program_wants(tmp_path: Path) -> None:
    session = FakeSession()
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as client:
        await client.driving()
        await client.send("key", name="up")
        await client.send("paste", text="a\r\nb\nc")
        await until(lambda: session.typed == b"\x1b[Aa\rb\rc")
        session.show(b"\x1b[?1h\x1b[?2004h")
        await client.send("key", name="up")
        await client.send("key", name="ctrl+up")
        await client.send("paste", text="rm\x1b[201~\n")
        wanted = b"\x1b[Aa\rb\rc" + b"\x1bOA\x1b[1;5A\x1b[200~rm[201~\r\x1b[201~"
        await until(lambda: session.typed == wanted)


async def test_the_driver_sets_the_size_within_limits(tmp_path: Path) -> None:
    session = FakeSession()
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as client:
        await client.send("resize", rows=20, columns=60)
        await client.next("refused")
        await client.driving()
        await client.send("resize", rows=20, columns=60)
        while (await client.next("screen"))["size"] != [20, 60]:
            pass
        assert len(client.batches[-1]["rows"]) == 20
        await client.send("resize", rows=70_000, columns=0)
        await until(lambda: session.sizes == [(20, 60), (300, 2)])


@pytest.mark.parametrize("frame", ["{", '{"type":"other"}', '{"type":"key"}', '{"type":"ack","n":"x"}', "[]"])
async def test_a_wrong_frame_is_refused_and_the_terminal_continues(tmp_path: Path, frame: str) -> None:
    session = FakeSession()
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as client:
        await client.socket.send_str(frame)
        assert (await client.next("refused"))["error_name"] == "NO_INPUT"
        session.show(b"on")
        await client.until_shown("on")


async def test_a_program_that_takes_no_input_does_not_stop_the_display(tmp_path: Path) -> None:
    session = FakeSession()
    session.holding = asyncio.Event()
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as client:
        await client.driving()
        await client.send("text", text="waits")
        for text in ("one", "two"):
            session.show(text.encode())
            await client.until_shown(text)
        await client.socket.send_bytes(b"x" * 1_000_000)
        await client.socket.send_bytes(b"x" * 1_000_000)
        assert "does not take more input" in (await client.next("refused"))["message"]
        session.holding.set()
        await until(lambda: session.typed == b"waits" + b"x" * 1_000_000)


async def test_an_ended_session_is_shown_and_takes_no_input(tmp_path: Path) -> None:
    session = FakeSession()
    session.show(b"bye")
    async with serving(tmp_path, FakeAgents(session)) as served, watching(served) as client:
        await client.driving()
        session.end(3)
        while not client.state["ended"]:
            await client.next("state")
        assert (client.state["driving"], client.state["exit_status"]) == (False, 3)
        await client.send("drive")
        assert (await client.next("refused"))["error_name"] == "NOT_READY"
        await client.until_shown("bye")
    async with serving(tmp_path / "2", FakeAgents(session)) as served, watching(served) as client:
        session.screen = None  # as after a restart of the gateway
        assert (await client.next("state"))["ended"]


async def test_sessions_without_an_owner_are_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeAgents()) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with watching(served):
                pass
        assert caught.value.status == 404


@pytest.mark.slow
@pytest.mark.parametrize("view", ["bytes", "rows"])
async def test_the_terminal_of_another_user_is_refused(tmp_path: Path, view: str) -> None:
    plugin = CodingAgents()
    settings = {"min_free_memory_mb": 0, "sandbox": "off"}
    async with serving(tmp_path, plugin, plugins={"coding_agents": settings}) as served:
        sessions = await plugin.service()
        own, other = [
            await sessions.spawn(SpawnRequest(agent="shell", owner=owner))
            for owner in ("owner", "telegram:1")
        ]
        try:
            url = f"{served.url}/api/coding-agents/{{}}/terminal?view={view}"
            for session_id in (other.id, other.short_id, "pty-1-ffffffff"):
                with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                    await served.http.ws_connect(url.format(session_id))
                assert caught.value.status == 404
            async with served.http.ws_connect(url.format(own.id)) as socket:
                assert (await Client(socket).next("state"))["agent"] == "shell"
        finally:
            for session in sessions.running():
                await session.stop(force=True)


async def test_other_clients_get_the_output_itself_from_an_offset(tmp_path: Path) -> None:
    folder, key = tmp_path / "keeper", os.urandom(32)
    argv = ("/bin/sh", "-c", "stty -echo; printf 0123456789; read line; printf got-$line; read end")
    await start_keeper(
        KeeperLaunch(
            folder=folder,
            argv=argv,
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            key=key,
            mark="terminal",
            orphan_ms=60_000,  # its end is not acknowledged
        )
    )
    session = FakeSession(folder, structs.replace(RECORD, key=key.hex()))
    keeper = await KeeperClient.attach(
        folder, key, 0, on_output=lambda _at, _data: None, on_exit=lambda _exit: None, on_gone=lambda: None
    )
    session.type_raw = lambda data: keeper.write(len(data), data)  # type: ignore[method-assign]
    try:
        async with (
            serving(tmp_path / "data", FakeAgents(session)) as served,
            watching(served, "after=4") as client,
        ):
            await client.send("drive")
            output = b""
            while not output.endswith(b"456789"):
                output += await _bytes(client, len(output) + 4)
            await client.socket.send_bytes(b"it\r")
            while not output.endswith(b"got-it"):
                output += await _bytes(client, len(output) + 4)
    finally:
        keeper.signal(9)
        await keeper.close()


async def _bytes(client: Client, offset: int) -> bytes:
    """Return the bytes of the next binary frame, whose offset is given."""
    while True:
        async with asyncio.timeout(60):
            message = await client.socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            assert struct.unpack(">Q", message.data[:8]) == (offset,)
            return message.data[8:]
