"""The gateway's side of a keeper: it starts the process, attaches to it, and serves its streams.

In: a launch; input, sizes and signals. Out: numbered output, the exit status, and streams from inside the
sandbox. ``sessions`` and the page's terminal use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from msgspec import Struct

from gateway.api import NodeService
from plugins.coding_agents.errors import CodingAgentError, KeeperLostError
from plugins.coding_agents.keeper import wire
from plugins.coding_agents.keeper.wire import FrameError, FrameSplitter, frame, pack
from plugins.coding_agents.records import SessionRecord
from plugins.programs.process import MARK

SOCKET = "keeper.sock"
SIBLING_SOCKET = "inside/sibling.sock"
"""The sockets of a keeper, in the session's folder. Only ``inside`` may be visible in a sandbox."""
MOST_INPUT = wire.MAX_FRAME - wire.OFFSET.size
"""Bytes that can be typed at once."""

_START_SECONDS = 30
ATTACH_SECONDS = 10.0
_PATH_BYTES = 100


class KeeperError(CodingAgentError):
    """A keeper could not be started, or refused a request."""

    code = "KEEPER_REFUSED"
    status = 502


class KeeperRunsError(KeeperError):
    """Another keeper has the folder; attach to it."""


class KeeperKeyError(KeeperError):
    """The key is not that of the keeper."""


class InputFullError(KeeperError):
    """The program does not read its input, and no more is queued."""

    retryable = True


class ProgramEndedError(KeeperError):
    """The program has ended; it takes no input."""


class KeeperSilentError(KeeperLostError):
    """The keeper runs, but does not answer: it is suspended, or the machine is very busy."""

    retryable = True


class KeeperAwayError(KeeperSilentError):
    """The keeper runs on the machine of another node, and no node there can be reached."""


Connect = Callable[[asyncio.Protocol], Awaitable[object]]
"""Connects a protocol to a keeper. Raises KeeperAwayError, KeeperLostError or OSError."""


class KeeperLaunch(Struct, frozen=True, kw_only=True):
    """The start of a keeper and its program.

    ``folder`` belongs to this session alone and gets mode 0700. ``argv`` has the program with its confinement
    in front, and ``env`` is its whole environment, to which ``mark`` is added. ``key`` has 32 random bytes.
    Without a gateway for ``orphan_ms`` the keeper ends the program.
    """

    folder: Path
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    key: bytes
    mark: str
    rows: int = 40
    columns: int = 120
    orphan_ms: int = 86_400_000


class Exit(Struct, frozen=True):
    """The end of a program: its exit status, negative for a signal, and its time in ms."""

    status: int
    ended_at: int


class Hello(Struct, frozen=True):
    """A keeper's answer to an attachment: its protocol, the retained output, and its program.

    ``oldest`` above the requested offset means that output in between is lost.
    """

    version: int
    oldest: int
    end: int
    pid: int
    started_at: int
    boot_id: str


async def start_keeper(launch: KeeperLaunch) -> None:
    """Start a keeper. Return when it listens and the program runs.

    Raises KeeperRunsError if the folder has a keeper, and KeeperError with another reason, such as a program
    that does not exist. If this is cancelled, the keeper may run; ``kill_marked`` ends it.
    """
    await asyncio.to_thread(_make_folders, launch.folder)
    script = Path(wire.__file__).with_name("__main__.py")
    # The mark in its environment lets kill_marked() find the keeper, too. It needs nothing else from there.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-B", str(script), launch.folder.name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={MARK: launch.mark},
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            answer, _ = await process.communicate(_packed(launch))
    except TimeoutError:
        raise KeeperError(f"the keeper of {launch.folder.name} did not start in {_START_SECONDS} s") from None
    if answer == wire.RUNS:
        raise KeeperRunsError(f"a keeper of {launch.folder.name} already runs")
    if answer != wire.READY:
        reason = answer.decode(errors="replace") or f"its process ended with status {process.returncode}"
        raise KeeperError(f"the terminal could not be started: {reason}")


def _packed(launch: KeeperLaunch) -> bytes:
    mark = f"{MARK}={launch.mark}"
    env = [f"{name}={value}" for name, value in launch.env.items() if name != MARK]
    texts = (str(launch.folder.absolute()), launch.cwd)
    numbers = f"{launch.rows} {launch.columns} {launch.orphan_ms}"
    rest = (mark, numbers, str(len(launch.argv)), *launch.argv, mark, *env)
    return pack([*map(os.fsencode, texts), launch.key, *map(os.fsencode, rest)])


def _make_folders(folder: Path) -> None:
    for path in (folder, folder / Path(SIBLING_SOCKET).parent):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)


class Stream:
    """A connection that a process in the sandbox made to the sibling socket.

    A lost connection raises ConnectionResetError, as with other sockets.
    """

    def __init__(self, send: Callable[[bytes], None], streams: dict[int, Stream], number: int) -> None:
        self._send = send
        self._forget = partial(streams.pop, number, None)
        self._number = wire.STREAM.pack(number)
        self._received = bytearray()
        self._taken = 0
        self._credit = wire.WINDOW
        self._wake = asyncio.Event()
        self._read_ended = False
        self._write_ended = False
        self._lost = False

    async def read(self, most: int = 65536) -> bytes:
        """Return the next bytes; b"" at the end."""
        while not self._received:
            if self._lost:
                raise ConnectionResetError("the connection from the sandbox was lost")
            if self._read_ended:
                return b""
            await self._changed()
        data = bytes(self._received[:most])
        del self._received[:most]
        self._taken += len(data)
        if self._taken >= wire.WINDOW // 4 and not self._read_ended:
            self._send(frame(b"N", self._number, struct.pack(">I", self._taken)))
            self._taken = 0
        return data

    async def readline(self, most: int = 4096) -> bytes:
        """Return a line with its end; without one if the stream ends or the line is longer than allowed."""
        line = bytearray()
        while len(line) < most and not line.endswith(b"\n"):
            if not (byte := await self.read(1)):
                break
            line += byte
        return bytes(line)

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the other side does not read."""
        view = memoryview(data)
        while view:
            if self._lost or self._write_ended:
                raise ConnectionResetError("the connection from the sandbox was closed")
            if self._credit:
                piece = view[: self._credit]
                self._credit -= len(piece)
                self._send(frame(b"B", self._number, piece))
                view = view[len(piece) :]
            else:
                await self._changed()

    def write_eof(self) -> None:
        """Tell the other side that nothing more follows."""
        if not self._write_ended and not self._lost:
            self._write_ended = True
            self._send(frame(b"F", self._number))
            if self._read_ended:
                self._forget()

    async def close(self) -> None:
        """Close both directions; what was written is still delivered if the other side has ended its own."""
        self.write_eof()
        if not self._read_ended and not self._lost:
            self._send(frame(b"Z", self._number))
        self._lose()

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Act on a frame for this stream (called by the client)."""
        if kind == b"B":
            self._received += payload
        elif kind == b"F":
            self._read_ended = True
            if self._write_ended:
                self._forget()
        elif kind == b"N":
            self._credit += int.from_bytes(payload[:4])
        else:
            self._lose()
        self._wake.set()

    def _lose(self) -> None:
        self._lost = True
        self._forget()
        self._wake.set()

    async def _changed(self) -> None:
        self._wake.clear()
        await self._wake.wait()


class KeeperClient(asyncio.Protocol):
    """An attached keeper.

    ``on_output`` gets the offset and the bytes of each piece of output. An offset above the end of the last
    piece means that output in between is lost. ``on_exit`` is called once, after all output. ``on_gone`` is
    called when the connection ends without ``close`` or ``acknowledge_exit``: the keeper has ended, or this
    client was more than 1 MiB behind; attach again from the next offset to find out which.
    """

    def __init__(
        self,
        on_output: Callable[[int, bytes], None],
        on_exit: Callable[[Exit], None],
        on_gone: Callable[[], None],
        on_stream: Callable[[Stream], None] | None,
    ) -> None:
        self._on_output = on_output
        self._on_exit = on_exit
        self._on_gone = on_gone
        self._on_stream = on_stream
        self._frames = FrameSplitter(wire.MAX_FRAME)
        self._streams: dict[int, Stream] = {}
        self._written: dict[int, list[asyncio.Future[None]]] = {}
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._lost = asyncio.Event()
        self._answered = asyncio.Event()
        self._closing = False
        self._refusal: KeeperError | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def attach(
        cls,
        folder: Path,
        key: bytes,
        offset: int,
        *,
        on_output: Callable[[int, bytes], None],
        on_exit: Callable[[Exit], None],
        on_gone: Callable[[], None],
        on_stream: Callable[[Stream], None] | None = None,
        seconds: float = ATTACH_SECONDS,
        connect: Connect | None = None,
    ) -> KeeperClient:
        """Attach to the keeper of a folder; its output follows from an offset. Callbacks may begin at once.

        ``connect`` reaches a keeper on another machine.

        Raises KeeperLostError if there is no keeper, KeeperSilentError if it does not answer, KeeperKeyError
        for a wrong key, KeeperError if it refuses for another reason.
        """
        client = cls(on_output, on_exit, on_gone, on_stream)
        try:
            async with asyncio.timeout(seconds):
                await (connect or partial(_connect_here, folder))(client)
                serves = on_stream is not None
                try:
                    client._send(frame(b"A", wire.ATTACH.pack(key, offset, wire.VERSION, serves)))
                    await client._hello
                except KeeperLostError as error:
                    if connect is None:
                        raise
                    # The node in between may have ended. If it was the keeper, the next attempt shows it.
                    raise KeeperAwayError(str(error)) from error
        except TimeoutError:
            client.abort()
            raise KeeperSilentError(f"the keeper of {folder.name} does not answer") from None
        except OSError as error:
            raise KeeperLostError(f"no keeper runs for {folder.name} ({error.strerror})") from error
        except BaseException:
            client.abort()
            raise
        return client

    @property
    def hello(self) -> Hello:
        """The keeper's answer."""
        return self._hello.result()

    async def write(self, command_id: int, data: bytes) -> None:
        """Type input, up to ``MOST_INPUT`` bytes. Return when the terminal has taken it.

        Ids begin at 1. The keeper types each id once, also if another gateway repeats it. Raises
        InputFullError, ProgramEndedError, or KeeperLostError, after which the same id may be repeated.
        """
        if len(data) > MOST_INPUT:
            raise KeeperError(f"{len(data)} bytes cannot be typed at once; the limit is {MOST_INPUT}")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._written.setdefault(command_id, [])
        waiting.append(written)
        try:
            self._send(frame(b"W", wire.OFFSET.pack(command_id), data))
            await written
        finally:
            waiting.remove(written)
            if not waiting:
                self._written.pop(command_id, None)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal; sizes that no screen can have are adjusted."""
        self._send(frame(b"R", wire.SIZE.pack(*wire.clamp_size(rows, columns))))

    def signal(self, number: int) -> None:
        """Send a signal to the program and to what runs in the foreground of its terminal."""
        self._send(frame(b"K", bytes([number])))

    async def acknowledge_exit(self) -> None:
        """End the keeper after the program's end. Return when it has removed its sockets.

        Raises KeeperError while the program runs.
        """
        self._closing, self._refusal = True, None
        self._answered.clear()
        self._send(frame(b"Q"))
        await self._answered.wait()
        if self._refusal is not None:
            self._closing = False
            raise self._refusal

    async def close(self) -> None:
        """Detach; the program keeps running."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
            await self._lost.wait()

    def abort(self) -> None:
        """Detach at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Act on frames (called by asyncio)."""
        try:
            for kind, payload in self._frames.feed(data):
                self._receive(kind, payload)
        except (FrameError, struct.error):
            # The following bytes cannot be parsed either.
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what waits for the keeper (called by asyncio)."""
        lost = KeeperLostError("the connection to the keeper was lost")
        waiting = [future for futures in self._written.values() for future in futures]
        for future in (self._hello, *waiting):
            if not future.done():
                future.set_exception(lost)
        for stream in list(self._streams.values()):
            stream.receive(b"Z", b"")
        self._lost.set()
        self._answered.set()
        if not self._hello.cancelled() and self._hello.exception() is None and not self._closing:
            self._on_gone()

    def _send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise KeeperLostError("the connection to the keeper was lost")
        self._transport.write(data)

    def _receive(self, kind: bytes, payload: bytes) -> None:
        if kind == b"O":
            (offset,) = wire.OFFSET.unpack_from(payload)
            self._on_output(offset, payload[wire.OFFSET.size :])
        elif kind == b"D":
            self._settle(wire.OFFSET.unpack_from(payload)[0], None)
        elif kind == b"X":
            self._on_exit(Exit(*wire.EXIT.unpack_from(payload)))
        elif kind == b"H":
            version, oldest, end, pid, started_at, boot_id = wire.HELLO.unpack_from(payload)
            hello = Hello(version, oldest, end, pid, started_at, boot_id.rstrip(b"\0").decode())
            if not self._hello.done():
                self._hello.set_result(hello)
        elif kind == b"E":
            self._fail(payload)
        elif kind in b"SBFNZ":
            self._receive_stream(kind, payload)

    def _settle(self, command_id: int, error: KeeperError | None) -> None:
        for future in self._written.get(command_id, ()):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _fail(self, payload: bytes) -> None:
        code, command_id = wire.ERROR.unpack_from(payload)
        text = payload[wire.ERROR.size :].decode(errors="replace")
        error = _ERRORS.get(code, KeeperError)(f"the keeper refused: {text}")
        if not self._hello.done():
            self._hello.set_exception(error)
        if code == wire.STILL_RUNS:
            self._refusal = error
            self._answered.set()
        self._settle(command_id, error)

    def _receive_stream(self, kind: bytes, payload: bytes) -> None:
        (number,) = wire.STREAM.unpack_from(payload)
        if kind == b"S":
            if self._on_stream is not None:
                stream = Stream(self._send_stream, self._streams, number)
                self._streams[number] = stream
                self._on_stream(stream)
        elif (stream := self._streams.get(number)) is not None:
            stream.receive(kind, payload[wire.STREAM.size :])

    def _send_stream(self, data: bytes) -> None:
        with contextlib.suppress(KeeperLostError):
            self._send(data)


_ERRORS = {
    wire.WRONG_KEY: KeeperKeyError,
    wire.INPUT_FULL: InputFullError,
    wire.HAS_ENDED: ProgramEndedError,
}


def connect_through(nodes: NodeService, record: SessionRecord) -> Connect:
    """Return how to reach the keeper of a session on the machine of other nodes."""
    place = {"node": record.node, "host": record.host, "boot_id": record.boot_id}

    async def connect(client: asyncio.Protocol) -> None:
        try:
            await nodes.connect(client, session=record.id, **place)
        except ProcessLookupError as error:
            raise KeeperLostError(str(error)) from error
        except OSError as error:
            raise KeeperAwayError(f"the machine of node {record.node} is away: {error}") from error

    return connect


async def _connect_here(folder: Path, client: asyncio.Protocol) -> None:
    sock = await _connect(folder)
    await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=sock)


async def _connect(folder: Path) -> socket.socket:
    """Connect to the socket of a folder, whose path may be longer than that of a socket may be."""
    path = folder / SOCKET
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        if len(os.fsencode(path)) <= _PATH_BYTES:
            await loop.sock_connect(sock, str(path))
            return sock
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            await loop.sock_connect(sock, f"/proc/self/fd/{descriptor}/{SOCKET}")
        finally:
            os.close(descriptor)
    except BaseException:
        sock.close()
        raise
    return sock
