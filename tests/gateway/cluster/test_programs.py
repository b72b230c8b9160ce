"""Programs on other machines: the active node reaches each through a node on its machine, and no more."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from sqlalchemy import create_engine, text

from channels.telegram.fake import FakeTelegram, Message
from gateway.cluster.link import ANY_PORT, Link, ProgramRequest
from gateway.cluster.membership import Membership, read_boot_id
from gateway.cluster.programs import Programs
from tests.gateway.cli.processes import trunkline
from tests.gateway.cluster.nodes import Cluster, settings_of, standing_by, until
from tests.plugins.coding_agents.rig import end_all, processes

pytestmark = pytest.mark.postgres

SESSION = "pty-1795881331455-d209c389"
HERE = {"host": socket.gethostname(), "boot_id": read_boot_id()}


class Member:
    """A node without a gateway."""

    def __init__(self, folder: Path, url: str, name: str, tasks: asyncio.TaskGroup) -> None:
        self.link = Link(ANY_PORT)
        self.membership = Membership(settings_of(folder, url, name))
        self.programs = Programs(folder / "data", self.membership, self.link, tasks)
        self.link.serve = self.programs.serve

    async def join(self) -> None:
        await self.link.open(await self.membership.join("rabbit@here", self.link))

    async def leave(self) -> None:
        self.programs.close()
        self.link.close()
        await self.membership.close()


class Reader(asyncio.Protocol):
    """The end of the active node: it collects what the program sends."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


class Machines:
    """Node "one" works, and "two" stands by on the machine of the programs. Both share a folder."""

    def __init__(self, folder: Path, url: str, tasks: asyncio.TaskGroup) -> None:
        self.one, self.two = (Member(folder, url, name, tasks) for name in ("one", "two"))
        self.sessions = folder / "data" / "coding-agents" / "sessions"
        self._url = url

    async def reach(self, session: str = SESSION, node: str = "two", **changed: str) -> Any:
        """Connect "one" to a program. Returns the transport and its reader."""
        reader = Reader()
        place = {**HERE, **changed}
        return await self.one.programs.connect(reader, session=session, node=node, **place), reader

    async def refused(self, session: str = SESSION, node: str = "two", **changed: str) -> str:
        """The reason because of which "one" is not connected; it may be later."""
        with pytest.raises(OSError, match=r"^(two: |no node)") as found:
            await self.reach(session, node, **changed)
        assert not isinstance(found.value, ProcessLookupError), found.value
        return str(found.value)

    def change(self, statement: str) -> None:
        engine = create_engine(self._url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()


@asynccontextmanager
async def listening(folder: Path) -> AsyncGenerator[asyncio.Server]:
    """A program in a session's folder, which sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(echo, sock=bound(folder)) as server:
        yield server


def bound(folder: Path) -> socket.socket:
    folder.mkdir(parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The path may be longer than that of a socket may be.
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    sock.bind(f"/proc/self/fd/{descriptor}/keeper.sock")
    os.close(descriptor)
    return sock


@pytest.fixture
async def machines(tmp_path: Path, postgres_url: str) -> AsyncGenerator[Machines]:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        made = Machines(tmp_path, postgres_url, tasks)
        for member in (made.one, made.two):
            stack.push_async_callback(member.leave)
            await member.join()
        await made.one.membership.take()
        yield made


async def test_all_bytes_pass_both_ways_at_the_pace_of_the_slower_side(machines: Machines) -> None:
    async with listening(machines.sessions / SESSION):
        transport, reader = await machines.reach()
        sent = os.urandom(8_000_000)
        transport.pause_reading()
        for at in range(0, len(sent), 100_000):
            async with asyncio.timeout(60):
                if not reader.writable.is_set():
                    transport.resume_reading()
                await reader.writable.wait()
            transport.write(sent[at : at + 100_000])
        transport.resume_reading()
        await until(lambda: len(reader.received) == len(sent))
        assert reader.received == sent
        transport.close()
        await reader.lost.wait()


async def test_a_node_with_another_name_on_the_machine_is_asked(machines: Machines) -> None:
    async with listening(machines.sessions / SESSION):
        transport, reader = await machines.reach(node="renamed", host="elsewhere")
        transport.write(b"hello")
        await until(lambda: reader.received == b"hello")
        transport.close()


async def test_only_the_socket_of_a_session_is_reached(machines: Machines, tmp_path: Path) -> None:
    others = ("../secrets", "pty-1-abcdef01/../x", ".", "", "pty-1-abcdef01\n", "x" * 300, "pty-1-ABCDEF01")
    for name in others:
        assert "name of a session" in await machines.refused(name)
    async with listening(tmp_path / "out" / "pty-1-abcdef01"):
        machines.sessions.mkdir(parents=True)
        (machines.sessions / "pty-1-abcdef01").symlink_to(tmp_path / "out" / "pty-1-abcdef01")
        assert await machines.refused("pty-1-abcdef01")
        (machines.sessions / "pty-2-abcdef01").mkdir()
        (machines.sessions / "pty-2-abcdef01" / "keeper.sock").symlink_to(
            tmp_path / "out" / "pty-1-abcdef01" / "keeper.sock"
        )
        assert await machines.refused("pty-2-abcdef01")
        (machines.sessions / "pty-3-abcdef01").mkdir()
        (machines.sessions / "pty-3-abcdef01" / "keeper.sock").write_text("no socket")
        assert "not a socket" in await machines.refused("pty-3-abcdef01")
        shutil.move(machines.sessions, tmp_path / "moved")
        machines.sessions.symlink_to(tmp_path / "out")
        assert await machines.refused("pty-1-abcdef01")


async def test_a_program_has_ended_only_if_its_own_machine_says_so(machines: Machines) -> None:
    # Without the shared folder nothing is known.
    assert await machines.refused()
    machines.sessions.mkdir(parents=True)
    with pytest.raises(ProcessLookupError, match=f"no keeper runs for {SESSION}"):
        await machines.reach()
    async with listening(machines.sessions / SESSION) as server:
        server.close()
        with pytest.raises(ProcessLookupError, match="no keeper runs"):
            await machines.reach()
    # Another boot of the machine of "two", as "two" knows; a machine that only has its name does not.
    with pytest.raises(ProcessLookupError, match="started again"):
        await machines.reach(boot_id="an earlier boot")
    assert "another machine" in await machines.refused(boot_id="a boot", host="elsewhere")
    assert "no node lives" in await machines.refused(node="three", boot_id="a boot")
    with pytest.raises(ProcessLookupError, match="started again"):
        await machines.reach(node="one", boot_id="an earlier boot")


async def test_a_node_that_works_no_longer_is_refused_and_its_connections_end(machines: Machines) -> None:
    async with listening(machines.sessions / SESSION):
        transport, reader = await machines.reach()
        transport.write(b"before")
        await until(lambda: reader.received == b"before")
        await machines.two.programs.check()
        await machines.one.programs.check()
        assert not transport.is_closing()
        await machines.two.membership.take()
        await machines.two.programs.check()
        await asyncio.wait_for(reader.lost.wait(), 60)
        assert "only the active node" in await machines.refused()


async def test_connections_to_a_node_that_is_gone_end(machines: Machines) -> None:
    async with listening(machines.sessions / SESSION):
        _, reader = await machines.reach()
        machines.change(
            "UPDATE node SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE name = 'two'"
        )
        await machines.one.programs.check()
        await asyncio.wait_for(reader.lost.wait(), 60)
        assert "no node lives" in await machines.refused()


async def test_a_node_that_does_not_know_the_request_refuses_it(machines: Machines) -> None:
    async with listening(machines.sessions / SESSION):
        machines.two.link.serve = None
        assert "two: " in await machines.refused()
        # Such a node has not written a boot id, and is not even asked.
        machines.change("UPDATE node SET boot_id = '' WHERE name = 'two'")
        assert "no node lives" in await machines.refused()
    assert len(msgspec.json.encode(ProgramRequest(SESSION, "n" * 64, "h" * 64, "b" * 36, "s" * 32))) < 512


SETTINGS = """
[plugins]
enabled = ["coding_agents"]

[plugins.coding_agents]
sandbox = "off"
min_free_memory_mb = 0
orphan_ms = 300_000
"""
ASK = "read -p 'Overwrite the file? [y/n] ' answer; echo $answer >> typed; echo got $answer"


class Phone:
    """Ada's phone."""

    def __init__(self, telegram: FakeTelegram, chat: int) -> None:
        self._telegram = telegram
        self._chat = chat

    @property
    def texts(self) -> str:
        return "\n\n".join(self._telegram.answers(self._chat))

    def say(self, words: str) -> None:
        self._telegram.say(self._chat, words)

    async def sees(self, pattern: str, count: int = 1) -> None:
        try:
            await until(lambda: len(re.findall(pattern, self.texts)) >= count)
        except TimeoutError:
            raise AssertionError(f"no {pattern!r} in {self.texts}") from None

    async def asks(self, words: str, pattern: str) -> None:
        """Send a command, again until its answer has a pattern."""
        async with asyncio.timeout(60):
            while True:
                known = len(self._telegram.answers(self._chat))
                self.say(words)
                await until(lambda known=known: len(self._telegram.answers(self._chat)) > known)
                if re.search(pattern, "\n".join(self._telegram.answers(self._chat)[known:])):
                    return
                await asyncio.sleep(0.5)

    async def press(self, label: str) -> None:
        await until(lambda: self._shown(label))
        self._telegram.press(self._chat, self._shown(label)[-1].id, label)

    def _shown(self, label: str) -> list[Message]:
        return [one for one in self._telegram.messages(self._chat) if label in str(one.buttons)]


@pytest.fixture
def other_machine(tmp_path: Path) -> list[str]:
    return machine(tmp_path)


def machine(tmp_path: Path) -> list[str]:
    """The begin of a command that runs a program as on another machine, as far as its boot id tells that."""
    file = tmp_path / f"boot_id {uuid.uuid4()}"
    file.write_text(f"{uuid.uuid4()}\n")
    script = f'mount --bind "{file}" /proc/sys/kernel/random/boot_id && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this user may not make a namespace: {tried.stderr}")
    return prefix


@pytest.mark.slow
async def test_a_session_is_used_by_the_node_of_another_machine(
    cluster: Cluster, tmp_path: Path, other_machine: list[str]
) -> None:
    phone = Phone(cluster.telegram, cluster.chat)
    first, second = cluster.node("one", settings=SETTINGS), cluster.node("two", settings=SETTINGS)
    second.prefix = other_machine
    try:
        async with first, AsyncExitStack() as stack:
            assert await first.start()
            phone.say(f"/agents new shell {ASK}")
            await phone.sees("Overwrite the file")
            [folder] = (first.data / "coding-agents" / "sessions").iterdir()
            running = processes(folder.name)
            taking_over = await stack.enter_async_context(standing_by(cluster, second))
            await until(lambda: "standing by" in second.errors)
            await drain(tmp_path)
            assert await taking_over

            # The question that was asked before is answered, and typed once.
            await phone.press("Once")
            await phone.sees("(?s)has finished.*got y")
            phone.say("/agents 1 echo further | tee -a typed")
            await phone.sees("has finished", 2)
            typed = first.data / "coding-agents" / "scratch" / folder.name / "typed"
            assert typed.read_text() == "y\nfurther\n"

            # Without a node on its machine it goes on, and is used again when there is one.
            first.send_signal(signal.SIGKILL)
            await first.ended()
            await phone.asks("/agents", "unavailable: it runs on node one")
            phone.say("/agents 1 echo lost")
            await phone.sees("can be used when a node of that machine is back")
            assert processes(folder.name) == running
            starting = asyncio.create_task(first.start())
            await phone.asks("/agents 1 echo back | tee -a typed", "Sent")
            await phone.sees("has finished", 3)
            assert typed.read_text() == "y\nfurther\nback\n"

            # Its own machine again.
            assert await second.stop() == 0
            assert await starting
            await phone.asks("/agents 1 echo home | tee -a typed", "Sent")
            await phone.sees("has finished", 4)
            assert typed.read_text() == "y\nfurther\nback\nhome\n"
            phone.say("/agents 1 stop")
            await phone.sees("Stopped")
            await until(lambda: not folder.exists() and not processes(folder.name))
            assert "was lost" not in phone.texts
    finally:
        end_all(tmp_path / "shared")


@pytest.mark.slow
async def test_output_terminal_streams_size_and_end_pass_through_a_node_of_the_machine(
    cluster: Cluster, tmp_path: Path, other_machine: list[str]
) -> None:
    first, second = cluster.node("one", settings=SETTINGS), cluster.node("two", settings=SETTINGS)
    second.prefix = other_machine
    try:
        async with first, AsyncExitStack() as stack, aiohttp.ClientSession() as http:
            assert await first.start()
            body = {"agent": "shell", "task": "seq 20000"}
            async with http.post(f"{first.url}/api/coding-agents", json=body) as started:
                session = (await started.json())["id"]
            folder = first.data / "coding-agents" / "sessions" / session
            taking_over = await stack.enter_async_context(standing_by(cluster, second))
            await until(lambda: "standing by" in second.errors)
            await drain(tmp_path)
            assert await taking_over
            url = f"{second.url}/api/coding-agents/{session}"

            async def called(what: str, **body: Any) -> dict[str, Any]:
                """Post, again while the session is not attached or its program takes nothing."""
                async with asyncio.timeout(60):
                    while True:
                        async with http.post(f"{url}/{what}", json=body) as answer:
                            if answer.status not in (409, 503):
                                return await answer.json()
                        await asyncio.sleep(0.2)

            await called("resize", rows=33, cols=77)
            await called("send", text="stty size; cat; echo ov''er")
            seen = b""
            async with http.ws_connect(f"{url}/terminal?view=bytes&after=0") as socket:
                await socket.send_json({"type": "drive"})
                while b"33 77" not in seen:
                    seen += await piece(socket)
                await socket.send_json({"type": "text", "text": "typed\r"})
                while seen.count(b"typed\r\n") < 2:
                    seen += await piece(socket)
                await socket.send_json({"type": "key", "name": "ctrl+d"})
                while b"over\r\n" not in seen:
                    seen += await piece(socket)
            assert b"\n19999\r\n20000\r\n" in seen
            async with http.get(f"{url}/output?after=0") as answer:
                output = base64.b64decode((await answer.json())["data"])
            assert output.startswith(seen[: seen.index(b"over\r\n") + 6])

            # A program in the sandbox asks for a host; the active node refuses it.
            reader, writer = await asyncio.open_unix_connection(sock=inside(folder))
            writer.write(b"connect example.org 443\n")
            assert b"not among the allowed hosts" in await reader.readline()
            writer.close()

            await called("stop", force=True)
            await until(lambda: not folder.exists() and not processes(session))
    finally:
        end_all(tmp_path / "shared")


def inside(folder: Path) -> socket.socket:
    """A connection to the socket for programs in the sandbox."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptor = os.open(folder / "inside", os.O_PATH | os.O_DIRECTORY)
    sock.connect(f"/proc/self/fd/{descriptor}/sibling.sock")
    os.close(descriptor)
    return sock


async def piece(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    """Output of a terminal; "" for a frame of another kind."""
    message = await socket.receive(60)
    return message.data[8:] if message.type is aiohttp.WSMsgType.BINARY else b""


async def drain(home: Path) -> None:
    """Let the active node hand over."""
    config = str(home / "one" / "trunkline.toml")
    drained = await asyncio.to_thread(trunkline, "nodes", "drain", "--config", config, home=home)
    assert drained.returncode == 0, drained.stderr


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_whose_machine_says_that_its_keeper_has_ended_is_lost(
    cluster: Cluster, tmp_path: Path, other_machine: list[str], restarted: bool
) -> None:
    phone = Phone(cluster.telegram, cluster.chat)
    first, second = cluster.node("one", settings=SETTINGS), cluster.node("two", settings=SETTINGS)
    second.prefix = other_machine
    try:
        async with first, AsyncExitStack() as stack:
            assert await first.start()
            phone.say("/agents new shell echo begun")
            await phone.sees("has finished")
            [folder] = (first.data / "coding-agents" / "sessions").iterdir()
            taking_over = await stack.enter_async_context(standing_by(cluster, second))
            await until(lambda: "standing by" in second.errors)
            await first.stop()
            assert await taking_over
            await phone.asks("/agents", "unavailable: it runs on node one")
            end_all(tmp_path / "shared")
            first.prefix = machine(tmp_path) if restarted else ()
            starting = asyncio.create_task(first.start())
            await phone.sees("(?s)was lost.*" + ("started again" if restarted else "no keeper runs"))
            # Only its own node, when it works, removes what may be left.
            assert folder.exists()
            assert await second.stop() == 0
            assert await starting
            await until(lambda: not folder.exists())
    finally:
        end_all(tmp_path / "shared")
