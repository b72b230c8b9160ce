"""The websocket of a terminal: rows of the rendered screen for the page, or the output for other clients.

In: frames of a client, output of a session. Out: changed rows or bytes, and what the one driver types. The
page gets a batch at most every 50 ms, and the next one after it acknowledged the last; so a slow link shows
fewer states instead of old ones. ``README.md`` describes the frames.
"""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from gateway import TrunklineError
from gateway.api import ApiConnection
from plugins.coding_agents.adapters.keys import key_bytes
from plugins.coding_agents.errors import CodingAgentError, NoInputError, NotReadyError
from plugins.coding_agents.keeper_client import Connect, KeeperClient
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.screen import Row, Screen

PAUSE_SECONDS = 0.05
"""The shortest time between two batches of rows."""
_MOST_TYPED = 1024 * 1024
"""Bytes of a driver that wait until the program takes them."""
_WRITE_BYTES = 64 * 1024
_MOST_QUEUED = 20 * 1024 * 1024
"""Output that waits for a client: all that a keeper retains, and some more."""
_OFFSET = struct.Struct(">Q")

Unregister = Callable[[], None]


class Watched(Protocol):
    """A session as its terminals see it."""

    record: SessionRecord
    folder: Path
    connect: Connect | None
    """Reaches a keeper on another machine."""
    screen: Screen | None
    ended: asyncio.Event
    driver: object | None
    """The client that may type now."""

    def on_rendered(self, watcher: Callable[[], None]) -> Unregister:
        """Call ``watcher`` after each rendering with changes."""
        ...

    def subscribe(self, listener: Callable[[Any], None]) -> Unregister:
        """Call ``listener`` after each change of the session."""
        ...

    async def type_raw(self, data: bytes) -> None:
        """Type bytes."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        ...


class _Frame(Struct, frozen=True, tag_field="type", tag=str.lower):
    """A frame of a client."""


class Ack(_Frame, frozen=True):
    """The client has drawn a batch."""

    n: int


class Drive(_Frame, frozen=True):
    """The client wants to type; with ``take`` also if another one does."""

    take: bool = False


class Release(_Frame, frozen=True):
    """The client types no more."""


class Text(_Frame, frozen=True):
    """Text that was typed."""

    text: str


class Paste(_Frame, frozen=True):
    """Text that was pasted."""

    text: str


class Key(_Frame, frozen=True):
    """A key by its name, such as ``ctrl+c``."""

    name: str


class Resize(_Frame, frozen=True):
    """The size of the driver's terminal."""

    rows: int
    columns: int


class ScreenFrame(Struct, frozen=True, tag_field="type", tag="screen"):
    """A batch: the rows that changed, and the cursor, None if it is hidden. ``size`` is rows and columns."""

    n: int
    size: tuple[int, int]
    cursor: tuple[int, int] | None
    rows: Sequence[Row]


class StateFrame(Struct, frozen=True, tag_field="type", tag="state"):
    """The state of a session, and whether this client drives its terminal."""

    agent: str
    status: str
    public_status: str
    driving: bool
    ended: bool
    exit_status: int | None


class RefusedFrame(Struct, frozen=True, tag_field="type", tag="refused"):
    """The answer to a frame that was not done."""

    error_name: str
    message: str


class TerminalBusyError(CodingAgentError):
    """Another client drives the terminal."""

    code = "TERMINAL_BUSY"
    retryable = True
    status = 409


_decode = msgspec.json.Decoder(Ack | Drive | Release | Text | Paste | Key | Resize).decode


async def serve_terminal(
    session: Watched, client: ApiConnection, *, view: Literal["bytes", "rows"] = "bytes", after: int = 0
) -> None:
    """Serve a client until it leaves. Raises KeeperLostError for bytes of a session without a program."""
    viewer = _RowsTerminal(session, client) if view == "rows" else _BytesTerminal(session, client, after)
    await viewer.run()


class _Terminal(ABC):
    """The terminal of one client: what it types, and the state of the session."""

    def __init__(self, session: Watched, client: ApiConnection) -> None:
        self.session = session
        self.client = client
        self.changed = asyncio.Event()
        self.changed.set()
        self._shown: StateFrame | None = None
        self._typed = bytearray()
        self._typing = asyncio.Event()

    async def run(self) -> None:
        """Serve the client until it leaves."""
        session = self.session
        removes = [
            session.on_rendered(self.changed.set),
            session.subscribe(lambda _event: self.changed.set()),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self.show()), tasks.create_task(self._type())]
                await self._read()
                for task in others:
                    task.cancel()
        except* ConnectionError:
            pass
        finally:
            self._undrive()
            for remove in removes:
                remove()

    @abstractmethod
    async def show(self) -> None:
        """Send what changes."""

    @property
    def _driving(self) -> bool:
        return self.session.driver is self

    async def send(self, frame: Struct) -> None:
        """Send a frame as JSON."""
        await self.client.send(msgspec.json.encode(frame).decode())

    async def send_state(self) -> None:
        """Send the state if it is another one than the client has."""
        record = self.session.record
        if record.is_ended and self._driving:
            self._release()
        state = StateFrame(
            record.agent,
            record.status,
            record.public_status,
            self._driving,
            record.is_ended,
            record.exit_status,
        )
        if state != self._shown:
            self._shown = state
            await self.send(state)

    @abstractmethod
    def acknowledge(self, n: int) -> None:
        """Note that the client has drawn a batch."""

    async def _read(self) -> None:
        while (frame := await self.client.receive()) is not None:
            try:
                self._do(frame)
            except msgspec.DecodeError as error:
                await self._refuse(NoInputError(f"the frame is none of a terminal: {error}"))
            except TrunklineError as error:
                await self._refuse(error)

    async def _refuse(self, error: TrunklineError) -> None:
        await self.send(RefusedFrame(error.name, str(error)))

    def _do(self, received: str | bytes) -> None:
        if isinstance(received, bytes):
            self._put(received)
            return
        match _decode(received):
            case Ack(n):
                self.acknowledge(n)
            case Drive(take):
                self._drive(take=take)
            case Release():
                self._release()
            case Text(text):
                self._put(text.encode(errors="replace"))
            case Paste(text):
                self._put(self._pasted(text))
            case Key(name):
                self._put(self._key(name))
            case Resize(rows, columns):
                self._check_driving()
                self.session.resize(rows, columns)
            case _:
                pass

    def _drive(self, *, take: bool) -> None:
        if self.session.ended.is_set():
            raise NotReadyError("the session has ended")
        other = self.session.driver
        if other not in (None, self) and not take:
            raise TerminalBusyError(
                "another client drives this terminal; watch, or take it with drive and take"
            )
        self.session.driver = self
        if isinstance(other, _Terminal):
            other._note_release()
        self.changed.set()

    def _release(self) -> None:
        self._undrive()
        self._note_release()

    def _undrive(self) -> None:
        if self._driving:
            self.session.driver = None

    def _note_release(self) -> None:
        """Drop input that is not typed yet, and notify the client."""
        self._typed.clear()
        self.changed.set()

    def _check_driving(self) -> None:
        if not self._driving:
            raise TerminalBusyError("this client only watches; send drive first")

    def _put(self, data: bytes) -> None:
        self._check_driving()
        if len(self._typed) + len(data) > _MOST_TYPED:
            raise TerminalBusyError("the program does not take more input now")
        self._typed += data
        self._typing.set()

    async def _type(self) -> None:
        """Type what waits, in its own task: a program that takes no input must not stop the display."""
        while True:
            await self._typing.wait()
            self._typing.clear()
            try:
                while self._typed:
                    data = bytes(self._typed[:_WRITE_BYTES])
                    del self._typed[:_WRITE_BYTES]
                    await self.session.type_raw(data)
            except TrunklineError as error:
                await self._refuse(error)

    def _key(self, name: str) -> bytes:
        data = key_bytes(name)
        screen = self.session.screen
        is_cursor_key = (
            len(data) == 3 and data[:2] == b"\x1b[" and data[2:] in (b"A", b"B", b"C", b"D", b"H", b"F")
        )
        return (
            b"\x1bO" + data[2:] if is_cursor_key and screen is not None and screen.application_keys else data
        )

    def _pasted(self, text: str) -> bytes:
        # Without ESC no pasted text can end the paste by itself and then be taken for keys.
        data = text.replace("\r\n", "\n").replace("\n", "\r").replace("\x1b", "").encode(errors="replace")
        screen = self.session.screen
        return b"\x1b[200~" + data + b"\x1b[201~" if screen is not None and screen.bracketed_paste else data


class _RowsTerminal(_Terminal):
    """A terminal that the server renders."""

    def __init__(self, session: Watched, client: ApiConnection) -> None:
        super().__init__(session, client)
        self._screen: Screen | None = None
        self._version = 0
        self._rows: dict[int, Row] = {}
        self._last: ScreenFrame | None = None
        self._drawn = asyncio.Event()

    async def show(self) -> None:
        """Send batches of changed rows, each after the last was drawn."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            await self.send_state()
            batch = self._batch()
            if batch is not None:
                self._drawn.clear()
                self._last = batch
                await self.send(batch)
                await self._drawn.wait()
            await asyncio.sleep(PAUSE_SECONDS)

    def acknowledge(self, n: int) -> None:
        """Let the next batch follow."""
        if self._last is not None and n == self._last.n:
            self._drawn.set()

    def _batch(self) -> ScreenFrame | None:
        """Return what changed since the last batch; None if nothing did."""
        screen, last = self.session.screen, self._last
        if screen is None:
            return None
        size = screen.rows, screen.columns
        if screen is not self._screen or last is None or last.size != size:
            self._screen, self._version, self._rows = screen, 0, {}
        changed = [row for row in screen.changed_rows(self._version) if self._rows.get(row.index) != row]
        self._version = screen.version
        self._rows |= {row.index: row for row in changed}
        cursor = screen.cursor if screen.cursor_visible else None
        if last is not None and not changed and (size, cursor) == (last.size, last.cursor):
            return None
        return ScreenFrame(1 if last is None else last.n + 1, size, cursor, changed)


class _BytesTerminal(_Terminal):
    """A terminal that the client renders: offset and bytes of all output in binary frames."""

    def __init__(self, session: Watched, client: ApiConnection, after: int) -> None:
        super().__init__(session, client)
        self._after = after
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._gone = False

    async def run(self) -> None:
        """Follow the keeper over its own connection, so that a slow client delays no other one."""
        self._keeper = await KeeperClient.attach(
            self.session.folder,
            bytes.fromhex(self.session.record.key),
            self._after,
            on_output=self._take,
            on_exit=lambda _exit: self.changed.set(),
            on_gone=self._note_gone,
            connect=self.session.connect,
        )
        try:
            await super().run()
        finally:
            await self._keeper.close()

    async def show(self) -> None:
        """Send output as it comes."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            await self.send_state()
            while self._queue:
                data = self._queue.popleft()
                self._queued -= len(data)
                await self.client.send(data)
            if self._gone:
                raise ConnectionResetError("the client or the program is behind; connect again")

    def acknowledge(self, n: int) -> None:
        """Do nothing, because a terminal sends no batches."""

    def _take(self, offset: int, data: bytes) -> None:
        if self._gone:
            return
        self._queue.append(_OFFSET.pack(offset) + data)
        self._queued += len(data)
        if self._queued > _MOST_QUEUED:
            self._note_gone()
        self.changed.set()

    def _note_gone(self) -> None:
        self._gone = True
        self.changed.set()
