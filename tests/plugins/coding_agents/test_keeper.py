"""The keeper as a real process, and its client in the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from plugins.coding_agents.errors import KeeperLostError
from plugins.coding_agents.keeper_client import (
    Exit,
    KeeperClient,
    KeeperError,
    KeeperKeyError,
    KeeperLaunch,
    ProgramEndedError,
    Stream,
    start_keeper,
)
from plugins.programs.process import MARK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PATIENCE = 60
"""Seconds after which a test fails that waits for another process."""


def marked(mark: str) -> set[int]:
    """Return the living processes of a session, with the keeper."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


class Terminal:
    """A session: the launch of its keeper, and what a client of it has received."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = os.urandom(32)
        self.mark = uuid.uuid4().hex
        self.output = bytearray()
        self.gaps: list[tuple[int, int]] = []
        self.exits: list[Exit] = []
        self.gone = asyncio.Event()
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.changed = asyncio.Event()
        self.clients: list[KeeperClient] = []
        self.end = 0

    async def start(self, *argv: str, orphan_ms: int = 86_400_000) -> None:
        env = {"PATH": os.environ["PATH"], "PS1": "pty> "}
        await start_keeper(
            KeeperLaunch(
                folder=self.folder,
                argv=argv,
                env=env,
                cwd="/",
                key=self.key,
                mark=self.mark,
                orphan_ms=orphan_ms,
            )
        )

    async def attach(self, offset: int = 0) -> KeeperClient:
        self.end = offset
        self.clients.append(
            await KeeperClient.attach(
                self.folder,
                self.key,
                offset,
                on_output=self.receive,
                on_exit=lambda exit: (self.exits.append(exit), self.changed.set()),
                on_gone=lambda: (self.gone.set(), self.changed.set()),
                on_stream=self.streams.put_nowait,
            )
        )
        return self.clients[-1]

    def receive(self, offset: int, data: bytes) -> None:
        if offset != self.end:
            self.gaps.append((self.end, offset))
        self.end = offset + len(data)
        self.output += data
        self.changed.set()

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not happened():
                self.changed.clear()
                await self.changed.wait()

    async def shows(self, text: str) -> None:
        await self.until(lambda: text.encode() in self.output)

    async def ends(self) -> Exit:
        await self.until(lambda: self.exits)
        return self.exits[-1]

    async def empty(self) -> None:
        """Wait until no process of the session is left."""
        async with asyncio.timeout(PATIENCE):
            while marked(self.mark):
                await asyncio.sleep(0.02)


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    made = Terminal(tmp_path / "session")
    yield made
    for client in made.clients:
        await client.close()
    for pid in marked(made.mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_program_runs_in_a_terminal_and_its_exit_waits_for_the_acknowledgement(
    terminal: Terminal,
) -> None:
    await terminal.start("sh", "-c", "stty size; tty; pwd; read line; echo got:$line; exit 7")
    client = await terminal.attach()
    await terminal.shows("40 120\r\n/dev/")
    await client.write(1, b"hello\r")
    assert await terminal.ends() == Exit(7, terminal.exits[0].ended_at)
    assert b"got:hello\r\n" in terminal.output
    await client.close()
    again = await terminal.attach()
    await terminal.until(lambda: len(terminal.exits) == 2)
    with pytest.raises(ProgramEndedError):
        await again.write(2, b"x")
    await again.acknowledge_exit()
    assert terminal.exits[0] == terminal.exits[1]
    assert sorted(path.name for path in terminal.folder.rglob("*.sock")) == []
    assert not terminal.gone.is_set()
    await terminal.empty()


async def test_a_new_client_gets_the_output_that_it_has_not_seen(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "echo one; read x; echo two; read x; echo three; read x")
    first = await terminal.attach()
    await terminal.shows("one")
    await first.close()
    seen = len(terminal.output)
    second = await terminal.attach(seen)
    assert second.hello.end >= seen
    await second.write(1, b"\r")
    await terminal.shows("two")
    replay = Terminal(terminal.folder)
    replay.key = terminal.key
    third = await replay.attach()
    await replay.shows("two")
    await third.close()
    assert replay.output.count(b"one") == terminal.output.count(b"one") == 1
    assert terminal.gaps == replay.gaps == []


async def test_input_with_the_same_id_is_typed_once(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "stty -echo; echo ready; while read line; do echo got:$line; done")
    client = await terminal.attach()
    await terminal.shows("ready")
    await client.write(7, b"first\r")
    await client.write(7, b"first\r")
    await client.close()
    again = await terminal.attach(terminal.end)
    await again.write(7, b"first\r")
    await asyncio.gather(again.write(9, b"third\r"), again.write(8, b"second\r"))
    await terminal.shows("got:second")
    await terminal.shows("got:third")
    assert terminal.output.count(b"got:") == 3


async def test_a_program_that_a_signal_ends_has_a_negative_status(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "echo ready; exec sleep 1000")
    client = await terminal.attach()
    await terminal.shows("ready")
    client.signal(signal.SIGTERM)
    assert (await terminal.ends()).status == -signal.SIGTERM


async def test_a_wrong_key_is_refused(terminal: Terminal) -> None:
    await terminal.start("cat")
    right, terminal.key = terminal.key, os.urandom(32)
    with pytest.raises(KeeperKeyError, match="wrong key"):
        await terminal.attach()
    terminal.key = right
    await terminal.attach()


async def test_without_a_keeper_a_client_says_so(terminal: Terminal) -> None:
    with pytest.raises(KeeperLostError):
        await terminal.attach()
    await terminal.start("cat")
    client = await terminal.attach()
    os.kill(client.hello.pid, signal.SIGKILL)
    await terminal.ends()
    await client.acknowledge_exit()
    with pytest.raises(KeeperLostError):
        await terminal.attach()


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("no-such-program",), "no-such-program: No such file"),
        (("/etc/passwd",), "/etc/passwd: Permission denied"),
    ],
)
async def test_a_program_that_cannot_be_started_is_named(
    terminal: Terminal, argv: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(KeeperError, match=reason):
        await terminal.start(*argv)
    await terminal.empty()


async def test_a_second_keeper_of_a_folder_is_refused(terminal: Terminal) -> None:
    await terminal.start("cat")
    with pytest.raises(KeeperError, match="another keeper"):
        await terminal.start("cat")
    await terminal.attach()


async def test_a_folder_with_a_long_path_works(terminal: Terminal) -> None:
    terminal.folder = terminal.folder / ("long" * 40) / ("path" * 40)
    await terminal.start("sh", "-c", "echo ready; cat")
    await terminal.attach()
    await terminal.shows("ready")


GATEWAY = """
import asyncio, sys
from pathlib import Path
from plugins.coding_agents.keeper_client import KeeperClient, KeeperLaunch, start_keeper

async def main():
    folder, key, mark, path, program = sys.argv[1:]
    launch = KeeperLaunch(folder=Path(folder), argv=["sh", "-c", program], env={"PATH": path}, cwd="/",
                          key=bytes.fromhex(key), mark=mark)
    await start_keeper(launch)
    def show(offset, data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    await KeeperClient.attach(launch.folder, launch.key, 0, on_output=show, on_exit=print, on_gone=print)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_gateway_is_killed_in_the_middle_of_4000_lines_and_none_is_missing(
    terminal: Terminal,
) -> None:
    program = "stty -onlcr; for i in $(seq 4000); do echo line $i; done; exit 3"
    words = (str(terminal.folder), terminal.key.hex(), terminal.mark, os.environ["PATH"], program)
    gateway = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", GATEWAY, *words),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert gateway.stdout is not None
    async with asyncio.timeout(PATIENCE):
        seen = await gateway.stdout.read(1000)
        os.killpg(gateway.pid, signal.SIGKILL)
        seen += await gateway.stdout.read()
        await gateway.wait()
    await terminal.attach(len(seen))
    assert (await terminal.ends()).status == 3
    assert (seen + terminal.output).decode().splitlines() == [f"line {n}" for n in range(1, 4001)]
    assert terminal.gaps == []


async def test_a_connection_from_inside_is_served_by_the_gateway(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "cat")
    sibling = terminal.folder / "inside/sibling.sock"
    reader, writer = await asyncio.open_unix_connection(sibling)
    assert await reader.read() == b"unavailable gateway unavailable\n"
    writer.close()

    await terminal.attach()
    reader, writer = await asyncio.open_unix_connection(sibling)
    writer.write(b"credential\nhost=example.org\n")
    stream = await terminal.streams.get()
    assert await stream.readline() == b"credential\n"
    writer.write_eof()
    assert await stream.read() + await stream.read() == b"host=example.org\n"
    large = os.urandom(1_000_000)
    await asyncio.gather(stream.write(large), answer := asyncio.ensure_future(reader.readexactly(len(large))))
    assert answer.result() == large
    await stream.close()
    assert await reader.read() == b""
    writer.close()
