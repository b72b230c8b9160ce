"""A keeper and hostile programs, clients and disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plugins.coding_agents.keeper import wire
from plugins.coding_agents.keeper.wire import FrameSplitter, frame
from plugins.coding_agents.keeper_client import MOST_INPUT, InputFullError, KeeperError
from tests.plugins.coding_agents.terminals import PATIENCE, Terminal, new_terminal

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


@pytest.fixture
async def terminal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Terminal]:
    # A short name: the path of a Unix socket has 107 bytes at most.
    async with new_terminal(tmp_path_factory.mktemp("k") / "session") as made:
        yield made


def memory(pid: int) -> int:
    """Return the most memory that a process has had, in bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait to be collected."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_100_mb_without_a_line_end_are_drained_in_bounded_memory(terminal: Terminal) -> None:
    """With a client that reads all the time, and one that has stopped to read."""
    await terminal.start("sh", "-c", "read x; head -c 100000000 /dev/zero | tr '\\0' x; read x; exit 5")
    expected = 100_000_002
    idle = await attached(terminal)
    client = await terminal.attach()
    await client.write(1, b"\r")
    async with asyncio.timeout(PATIENCE):
        while terminal.end < expected:
            if terminal.gone.is_set():
                terminal.gone.clear()
                client = await terminal.attach(terminal.end)
            terminal.changed.clear()
            if terminal.end < expected:
                await terminal.changed.wait()
    assert terminal.output.strip(b"\r\n") == b"x" * (len(terminal.output) - 2)
    lost = sum(found - expected for expected, found in terminal.gaps)
    assert len(terminal.output) + lost == expected
    assert memory(terminal.keeper()) < 32 * MIB
    await client.write(2, b"\r")
    assert (await terminal.ends()).status == 5
    assert await dropped(idle) < 3 * MIB, "the client that did not read was dropped"
    files = [path.stat().st_size for path in terminal.folder.glob("output.*")]
    assert len(files) == 2
    assert max(files) <= 8 * MIB + 8


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b[" * 1_000_000,
        b"\x1b[?4m" * 100_000,
        b"\x1b]0;" + b"a" * 1_000_000,
        b"\xff\xc3\x28\xed\xa0\x80" * 100_000,
        bytes(1_000_000),
    ],
    ids=["escapes", "modes", "endless", "utf-8", "zeros"],
)
async def test_output_of_any_bytes_arrives_as_it_is(terminal: Terminal, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data").write_bytes(data)
    await terminal.start("sh", "-c", f"stty -opost -echo; echo ready; read x; cat {tmp_path}/data; exit 6")
    client = await terminal.attach()
    await terminal.shows("ready")
    await client.write(1, b"\n")
    assert (await terminal.ends()).status == 6
    assert terminal.gaps == []
    assert terminal.output == b"ready\n" + data


async def test_a_flood_of_questions_to_the_terminal_types_a_bounded_number_of_answers(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(b"\x1b[c\x1b[6n" * 100_000)
    await terminal.start("sh", "-c", f"stty raw -echo; cat {tmp_path}/data; echo done; read x; exit 6")
    client = await terminal.attach()
    await terminal.shows("done")
    client.signal(signal.SIGKILL)
    assert (await terminal.ends()).status == -signal.SIGKILL


@pytest.mark.parametrize(
    ("asked", "shown"), [((0, 0), b"1 1"), ((65535, 65535), b"500 1000"), ((30, 90), b"30 90")]
)
async def test_a_terminal_has_a_possible_size(
    terminal: Terminal, asked: tuple[int, int], shown: bytes
) -> None:
    await terminal.start("sh", "-c", "stty -echo; while read x; do stty size; done")
    sock = await attached(terminal)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(
        sock, frame(b"R", wire.SIZE.pack(*asked)) + frame(b"W", wire.OFFSET.pack(1), b"\r")
    )
    client = await terminal.attach()
    await terminal.shows(shown.decode())
    client.resize(*asked)
    await client.write(2, b"\r")
    await terminal.until(lambda: terminal.output.count(shown + b"\r\n") == 2)
    sock.close()


@pytest.mark.parametrize("leave", ["setsid -f", "nohup", "setsid -f env -i"])
async def test_a_program_that_forks_and_leaves_is_ended_with_all_its_processes(
    terminal: Terminal, leave: str
) -> None:
    program = f"trap '' HUP; {leave} sh -c 'trap \"\" HUP; echo $$ > pid; exec sleep 1000' & "
    terminal.cwd = str(terminal.folder.parent)
    await terminal.start("sh", "-c", program + "while ! [ -s pid ]; do sleep 0.1; done; exit 9")
    await terminal.attach()
    assert (await terminal.ends()).status == 9
    pid = int((terminal.folder.parent / "pid").read_text())
    assert not is_alive(pid)


async def test_a_stopped_program_takes_bounded_input_and_can_be_ended(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "stty raw -echo; echo ready; kill -STOP $$; cat")
    client = await terminal.attach()
    await terminal.shows("ready\n")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(client.write(1, b"x" * 1_000_000))
        await asyncio.sleep(0)
        with pytest.raises(InputFullError):
            await client.write(2, b"y" * 1_000_000)
        assert not waiting.done()
        other = await terminal.attach(terminal.end)
        assert other.hello.end == terminal.end
        await other.close()
        waiting.cancel()
    client.signal(signal.SIGTERM)
    assert (await terminal.ends()).status == -signal.SIGTERM
    await client.acknowledge_exit()


async def test_input_above_the_limit_is_refused_before_it_is_sent(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "stty -echo; echo ready; while read x; do echo got:$x; done")
    client = await terminal.attach()
    await terminal.shows("ready")
    with pytest.raises(KeeperError, match="at once"):
        await client.write(1, bytes(MOST_INPUT + 1))
    await client.write(1, b"small\r")
    await terminal.shows("got:small")


async def attached(terminal: Terminal) -> socket.socket:
    """Return a socket that has sent the first frame, and does not read."""
    sock = await connected(terminal)
    await asyncio.get_running_loop().sock_sendall(sock, frame(b"A", wire.ATTACH.pack(terminal.key, 0, 1, 0)))
    return sock


async def connected(terminal: Terminal) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(terminal.folder / "keeper.sock"))
    return sock


async def dropped(sock: socket.socket) -> int:
    """Read until the keeper closes the connection. Return the number of bytes."""
    count = 0
    async with asyncio.timeout(PATIENCE):
        try:
            while data := await asyncio.get_running_loop().sock_recv(sock, MIB):
                count += len(data)
        except ConnectionResetError:
            pass
    sock.close()
    return count


@pytest.mark.parametrize(
    "data",
    [
        frame(b"W", wire.OFFSET.pack(1), b"no key"),
        frame(b"A", b"short"),
        frame(b"A", bytes(32), wire.OFFSET.pack(0), b"\0\1\0"),
        frame(b"A", bytes(wire.MAX_FRAME)),
        b"\xff\xff\xff\xffA",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["no key", "short", "wrong key", "large", "endless", "http"],
)
async def test_a_connection_without_the_key_is_closed(terminal: Terminal, data: bytes) -> None:
    await terminal.start("sh", "-c", "echo secret; cat")
    sock = await connected(terminal)
    with contextlib.suppress(BrokenPipeError):
        await asyncio.get_running_loop().sock_sendall(sock, data)
    assert await dropped(sock) < 100
    await terminal.attach()
    await terminal.shows("secret")
    assert b"no key" not in terminal.output


@pytest.mark.parametrize(
    "data",
    [
        frame(b"W", b"short"),
        frame(b"R", b"\0"),
        frame(b"N", b"\0"),
        (wire.MAX_FRAME + 1).to_bytes(4) + b"W",
    ],
)
async def test_an_attached_client_with_a_bad_frame_gets_an_error_and_is_dropped(
    terminal: Terminal, data: bytes
) -> None:
    await terminal.start("cat")
    sock = await attached(terminal)
    loop = asyncio.get_running_loop()
    frames = FrameSplitter()
    found = frames.feed(await loop.sock_recv(sock, MIB))
    await loop.sock_sendall(sock, data)
    async with asyncio.timeout(PATIENCE):
        while piece := await loop.sock_recv(sock, MIB):
            found += frames.feed(piece)
    sock.close()
    assert [kind for kind, _ in found] == [b"H", b"E"]
    assert wire.ERROR.unpack_from(found[1][1]) == (wire.BAD_FRAME, 0)


async def test_unknown_frames_and_foreign_streams_are_ignored(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "stty -echo; read x; echo got:$x; cat")
    sock = await attached(terminal)
    streams = b"".join(frame(kind, struct.pack(">II", 9, 9)) for kind in (b"B", b"F", b"N", b"Z"))
    typed = frame(b"W", wire.OFFSET.pack(1), b"hello\r")
    await asyncio.get_running_loop().sock_sendall(
        sock, frame(b"?", b"new") + frame(b"K", b"\xff") + streams + typed
    )
    await terminal.attach()
    await terminal.shows("got:hello")
    sock.close()


async def test_a_client_that_sends_more_than_its_window_loses_the_stream(terminal: Terminal) -> None:
    await terminal.start("cat")
    await terminal.attach()
    reader, writer = await asyncio.open_unix_connection(terminal.folder / "inside/sibling.sock")
    stream = await terminal.streams.get()
    # More than the window and what a socket buffers.
    stream.receive(b"N", (64 * MIB).to_bytes(4))

    async def write_on() -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                await stream.write(bytes(MIB // 2))
                await asyncio.sleep(0)

    with pytest.raises(ConnectionResetError):
        await write_on()
    async with asyncio.timeout(PATIENCE):
        while await reader.read(MIB):
            pass
    writer.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("name", ["keeper.sock", "inside/sibling.sock"])
async def test_another_user_is_dropped(name: str) -> None:
    """Also where the folders would let the user in."""
    with tempfile.TemporaryDirectory() as folder:
        async with new_terminal(Path(folder) / "session") as terminal:
            await terminal.start("cat")
            await terminal.attach()
            path = terminal.folder / name
            for place in (Path(folder), terminal.folder, path.parent, path):
                place.chmod(0o777)
            program = (
                "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
                "s.connect(sys.argv[1]); print(s.recv(100))"
            )
            ended = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", program, path], capture_output=True, timeout=PATIENCE
            )
            assert ended.stdout == b"b''\n" or b"ConnectionReset" in ended.stderr
            assert terminal.streams.empty()


async def test_a_full_disk_neither_stops_the_program_nor_hides_what_is_lost(terminal: Terminal) -> None:
    await terminal.start(
        "sh", "-c", "read x; head -c 1000000 /dev/zero | tr '\\0' x; stty -echo; read x; echo end"
    )
    client = await terminal.attach()
    resource.prlimit(terminal.keeper(), resource.RLIMIT_FSIZE, (200_000, 200_000))
    await client.write(1, b"\r")
    await terminal.until(lambda: terminal.end >= 1_000_000)
    late = Terminal(terminal.folder)
    late.key = terminal.key
    again = await late.attach()
    assert again.hello.oldest == again.hello.end - 512 * 1024
    await late.until(lambda: late.end == again.hello.end)
    assert late.gaps == [(0, again.hello.oldest)]
    await client.write(2, b"\r")
    await terminal.shows("end")
    assert (await terminal.ends()).status == 0
    await again.close()


async def test_a_socket_that_was_removed_does_not_keep_the_session_alive(terminal: Terminal) -> None:
    await terminal.start("sh", "-c", "echo ready; cat", orphan_ms=300)
    client = await terminal.attach()
    await terminal.shows("ready")
    (terminal.folder / "keeper.sock").unlink()
    await client.close()
    await terminal.empty()
