"""The keeper as a real process, and its client in the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from plugins.coding_agents.errors import KeeperLostError
from plugins.coding_agents.keeper_client import (
    Exit,
    KeeperError,
    KeeperKeyError,
    KeeperRunsError,
    ProgramEndedError,
)
from plugins.programs.process import MARK, kill_marked
from tests.plugins.coding_agents.terminals import PATIENCE, Terminal, new_terminal

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def terminal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Terminal]:
    # A short name: the path of a Unix socket has 107 bytes at most.
    async with new_terminal(tmp_path_factory.mktemp("k") / "session") as made:
        yield made


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
    assert list(terminal.folder.rglob("*.sock")) == []
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
    with pytest.raises(KeeperRunsError):
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
    await KeeperClient.attach(launch.folder, launch.key, 0, on_output=show,
                              on_exit=lambda exit: None, on_gone=lambda: None)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_gateway_is_killed_in_the_middle_of_4000_lines_and_none_is_missing(
    terminal: Terminal,
) -> None:
    line = "x" * 100
    program = f"stty -onlcr; for i in $(seq 4000); do echo {line} $i; done; exit 3"
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
        # The pipe takes no more than a part of the rest.
        os.killpg(gateway.pid, signal.SIGKILL)
        seen += await gateway.stdout.read()
        await gateway.wait()
    await terminal.attach(len(seen))
    assert (await terminal.ends()).status == 3
    assert (seen + terminal.output).decode().splitlines() == [f"{line} {n}" for n in range(1, 4001)]
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

    await terminal.attach(terminal.end)
    reader, writer = await asyncio.open_unix_connection(sibling)
    stream = await terminal.streams.get()
    writer.close()
    assert await stream.read() == b""
    with pytest.raises(ConnectionResetError):
        await stream.write(bytes(10_000_000))

    reader, writer = await asyncio.open_unix_connection(sibling)
    stream = await terminal.streams.get()
    for client in terminal.clients:
        await client.close()
    assert await reader.read() == b"", "a gateway that leaves ends its streams"
    with pytest.raises(ConnectionResetError):
        await stream.read()
    writer.close()


async def test_two_clients_see_the_same(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "stty -echo; echo ready; read x; echo got:$x; read x")
    other = Terminal(terminal.folder)
    other.key = terminal.key
    first, second = await terminal.attach(), await other.attach()
    await terminal.shows("ready")
    await first.write(1, b"hello\r")
    await second.write(1, b"hello\r")
    await terminal.shows("got:hello")
    await other.shows("got:hello")
    await second.close()
    assert not terminal.gone.is_set()


async def test_a_program_that_runs_cannot_be_acknowledged(terminal: Terminal) -> None:
    await terminal.start("cat")
    client = await terminal.attach()
    with pytest.raises(KeeperError, match="has not ended"):
        await client.acknowledge_exit()
    await client.write(1, b"x")


def umask(process: Path) -> str:
    return (process / "status").read_text().split("Umask:")[1].split()[0]


async def check_independence(terminal: Terminal) -> None:
    """Check that a keeper and its program share nothing with this process."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        await terminal.start("cat")
        client = await terminal.attach()
        keeper, program = (Path(f"/proc/{pid}") for pid in (terminal.keeper(), client.hello.pid))
        assert os.fstat(writing).st_ino not in [entry.stat().st_ino for entry in (keeper / "fd").iterdir()]
        assert sorted(entry.name for entry in (program / "fd").iterdir()) == ["0", "1", "2"]
    finally:
        os.close(reading)
        os.close(writing)
    mark = f"{MARK}={terminal.mark}".encode()
    assert [v for v in (keeper / "environ").read_bytes().split(b"\0") if v] == [mark]
    assert mark in (program / "environ").read_bytes().split(b"\0")
    assert (keeper / "cwd").readlink() == terminal.folder
    assert os.getsid(int(keeper.name)) not in (os.getsid(0), os.getpid())
    assert umask(program) == umask(Path("/proc/self"))


async def test_the_keeper_has_nothing_of_the_gateway(terminal: Terminal) -> None:
    await check_independence(terminal)


async def test_questions_to_the_terminal_are_answered_without_a_gateway(terminal: Terminal) -> None:
    asks = r"printf 'abc\033[?u\033[6n\033]11;?\033\\\033[c'"
    answers = b"\x1b[?0u\x1b[1;4R\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62;22c"
    program = f"stty raw -echo; {asks}; head -c {len(answers)} > answers; stty sane; echo done; cat"
    terminal.cwd = str(terminal.folder.parent)
    await terminal.start("sh", "-c", program)
    await terminal.attach()
    await terminal.shows("done")
    assert (terminal.folder.parent / "answers").read_bytes() == answers


async def test_without_a_gateway_for_too_long_the_program_is_ended(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "trap '' HUP TERM; sleep 1000 & wait; sleep 1000", orphan_ms=200)
    await terminal.empty()
    assert list(terminal.folder.rglob("*.sock")) == []


async def test_sigterm_ends_the_program_and_then_the_keeper(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "echo ready; sleep 1000")
    await terminal.attach()
    await terminal.shows("ready")
    os.kill(terminal.keeper(), signal.SIGTERM)
    assert (await terminal.ends()).status < 0
    await terminal.until(terminal.gone.is_set)
    await terminal.empty()


async def test_a_killed_keeper_is_noticed_and_leaves_no_processes(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "trap '' HUP; echo ready; sleep 1000")
    client = await terminal.attach()
    await terminal.shows("ready")
    os.kill(terminal.keeper(), signal.SIGKILL)
    await terminal.until(terminal.gone.is_set)
    with pytest.raises(KeeperLostError):
        await client.write(1, b"x")
    with pytest.raises(KeeperLostError):
        await terminal.attach()
    kill_marked(terminal.mark)
    await terminal.empty()
    await terminal.start("cat")


def test_the_client_works_on_the_loop_of_the_gateway(tmp_path: Path) -> None:
    async def roundtrip() -> None:
        async with new_terminal(tmp_path / ("long" * 40)) as terminal:
            await terminal.start("sh", "-c", "echo ready; read x; echo got:$x; exit 4")
            client = await terminal.attach()
            await terminal.shows("ready")
            await client.write(1, b"hello\r")
            assert (await terminal.ends()).status == 4
            await client.acknowledge_exit()
            assert b"got:hello" in terminal.output
        async with new_terminal(tmp_path / "other") as terminal:
            await check_independence(terminal)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(roundtrip())
