"""The loop of a keeper: it connects the terminal, the clients, and the streams from inside the sandbox.

In: frames and connections. Out: frames. The program never waits for a client.
"""

from __future__ import annotations

import os
import select
import struct
import time

from .output import Output
from .terminal import CHUNK, CURSOR, LOOK_BACK, MOST_ANSWERS, Launch, Program, Queries, find_cursor
from .wire import (
    ATTACH,
    BAD_FRAME,
    BAD_SIGNAL,
    CREDIT,
    ERROR,
    EXIT,
    HAS_ENDED,
    HELLO,
    INPUT_FULL,
    MAX_FRAME,
    OFFSET,
    SIZE,
    STILL_RUNS,
    STREAM,
    UNAVAILABLE,
    VERSION,
    WINDOW,
    WRONG_KEY,
    WRONG_OFFSET,
    FrameError,
    FrameSplitter,
    boot_id,
    frame,
)

TYPE_CHECKING = False  # the module typing costs memory
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable
else:
    # These are below the public modules, whose enumerations would cost each keeper 1 MB.
    import _signal as signal
    import _socket as socket

_MOST_BEHIND = 1024 * 1024
_MOST_CLIENTS = 16
_MOST_STREAMS = 128
_MOST_IDS = 1024
_KEY_SECONDS = 10.0
_LARGE = 4000
_PROMPT_SECONDS = 0.5
_COLLECT_SECONDS = 0.1
"""After a piece of output, the next one is read after this time; 20 programs with 100 lines/s each would
otherwise take a third of a core. For a moment after input, whose echo is awaited, and after a large piece, it
is read at once: a terminal holds 64 KiB, and a program that writes more would have to wait."""
_SEND_BUFFER = 1024 * 1024
_LINGER_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_CLEAR_SECONDS = 5.0
_CLEAR_STEP = 0.02


class CommandIds:
    """The ids of all input that was accepted, so that repeated input is typed once.

    Ids usually count upwards, so one number represents most of them. If 1,024 of them are out of order, the
    gaps below them count as used.
    """

    def __init__(self) -> None:
        self._below = 1
        self._others: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._others

    def add(self, number: int) -> None:
        """Add an id."""
        self._others.add(number)
        if len(self._others) > _MOST_IDS:
            self._below = min(self._others)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1


class Client:
    """A connection of a gateway."""

    def __init__(self, sock: socket.socket, now: float) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.frames = FrameSplitter(ATTACH.size + 256)
        self.out = bytearray()
        self.attached = False
        self.serves = False
        """True if it serves streams."""
        self.cursor = 0
        self.replay_end = 0
        self.told_exit = False
        self.key_by = now + _KEY_SECONDS

    def is_slow(self, end: int) -> bool:
        """Return whether it is too far behind the output since it attached, or reads no answers."""
        return end - max(self.cursor, self.replay_end) > _MOST_BEHIND or len(self.out) > _MOST_BEHIND


class Inside:
    """A connection from inside the sandbox, which a client serves as a stream."""

    def __init__(self, sock: socket.socket, number: int, client: Client | None, now: float) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.number = number
        self.client = client
        """None: no gateway is attached; the connection only learns that."""
        self.out = bytearray()
        self.credit = WINDOW
        self.written = 0
        self.read_ended = False
        self.write_ended = False
        self.shut = False
        self.linger_until = now + _LINGER_SECONDS


class Keeper:
    """The process: one loop over the terminal, the sockets and the clocks."""

    def __init__(self, launch: Launch, umask: int) -> None:
        self._launch = launch
        self._poll = select.poll()
        self._watched: dict[int, tuple[Callable[[int], None], int]] = {}
        self._clients: list[Client] = []
        self._streams: dict[int, Inside] = {}
        self._next_stream = 1
        self._output = Output()
        self._queries = Queries()
        self._ids = CommandIds()
        self._actions: dict[bytes, Callable[[Client, bytes], None]] = {
            b"W": self._type,
            b"R": self._resize,
            b"K": self._signal,
            b"Q": self._acknowledge,
            b"B": self._stream_data,
            b"F": self._stream_end,
            b"N": self._stream_credit,
            b"Z": self._stream_reset,
        }
        self._boot_id = boot_id().encode()
        self._alone_since = time.monotonic()
        self._exit_status: int | None = None
        self._clear_by = 0.0
        self._kill_at: float | None = None
        self._read_at: float | None = None
        self._prompt_until = 0.0
        self._ending = False
        self._done = False
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _do_nothing)
        self._listener = _listen("keeper.sock")
        self._sibling = _listen("inside/sibling.sock")
        self._program = Program(launch, umask)
        self._watch(self._wake, select.POLLIN, self._on_signal)
        self._watch(self._listener.fileno(), select.POLLIN, self._on_client)
        self._watch(self._sibling.fileno(), select.POLLIN, self._on_inside)

    def run(self) -> None:
        """Serve until the exit of the program was acknowledged, or no gateway came for too long."""
        try:
            while not self._done:
                self._watch_program()
                for fd, event in self._poll.poll(self._timeout()):
                    if (watched := self._watched.get(fd)) is not None:
                        watched[0](event)
                self._tick(time.monotonic())
                for client in list(self._clients):
                    self._pump(client)
        finally:
            self._program.signal(signal.SIGKILL)
            for _ in range(100):
                if not self._program.kill_rest():
                    break
                time.sleep(_CLEAR_STEP)
            self._output.store(time.monotonic())
            for name in ("keeper.sock", "inside/sibling.sock"):
                _remove(name)

    def _watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call a handler at these events; with none, forget the descriptor (poll would report a hang-up)."""
        known = self._watched.get(fd)
        if events == 0:
            if known is not None:
                self._poll.unregister(fd)
                del self._watched[fd]
        elif known is None or known[1] != events:
            self._poll.register(fd, events)
            self._watched[fd] = (handler, events)

    def _unwatch(self, fd: int) -> None:
        self._watch(fd, 0, _do_nothing)

    def _timeout(self) -> float:
        """Return the time until the next deadline, in ms."""
        times = [client.key_by for client in self._clients if not client.attached]
        times += [inside.linger_until for inside in self._streams.values() if inside.client is None]
        if self._output.store_at is not None:
            times.append(self._output.store_at)
        if not any(client.attached for client in self._clients):
            times.append(self._orphaned_at())
        if self._kill_at is not None:
            times.append(self._kill_at)
        if self._read_at is not None:
            times.append(self._read_at)
        now = time.monotonic()
        if self._exit_status is not None and self._program.exit is None:
            times.append(now + _CLEAR_STEP)
        return max(0.0, (min(times) - now) * 1000 + 1) if times else -1

    def _orphaned_at(self) -> float:
        return self._alone_since + self._launch.orphan_ms / 1000

    def _tick(self, now: float) -> None:
        """Do what is due."""
        for client in list(self._clients):
            if not client.attached and now >= client.key_by:
                self._drop(client)
        for inside in list(self._streams.values()):
            if inside.client is None and now >= inside.linger_until:
                self._close_stream(inside)
        if self._output.store_at is not None and now >= self._output.store_at:
            self._output.store(now)
        if any(client.attached for client in self._clients):
            self._alone_since = now
        elif now >= self._orphaned_at():
            self._end(now)
        self._tick_program(now)

    def _tick_program(self, now: float) -> None:
        if self._read_at is not None and now >= self._read_at:
            self._read_program(now)
        if self._exit_status is not None and self._program.exit is None:
            self._clear(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._program.signal(signal.SIGKILL)
            self._done = self._program.exit is not None
            self._kill_at = now + 1

    def _end(self, now: float) -> None:
        """End the program and then the keeper."""
        if self._program.exit is not None:
            self._done = True
        elif not self._ending:
            self._ending = True
            self._kill_at = now + _GRACE_SECONDS
            self._program.signal(signal.SIGHUP)
            self._program.signal(signal.SIGTERM)

    def _on_signal(self, event: int) -> None:
        if signal.SIGTERM in os.read(self._wake, 4096):
            self._end(time.monotonic())
        status = self._program.reap()
        if status is not None:
            self._exit_status = status
            self._clear_by = time.monotonic() + _CLEAR_SECONDS
            self._clear(time.monotonic())

    def _clear(self, now: float) -> None:
        """Kill what the ended program left, read the rest of the output, and then record the exit."""
        if self._program.kill_rest() and now < self._clear_by:
            return
        while data := self._program.read():
            self._keep(data, now)
        self._program.exit = (self._exit_status or 0, int(time.time() * 1000))
        self._output.store(now)
        if self._ending:
            self._kill_at = now + 1

    def _watch_program(self) -> None:
        events = select.POLLOUT if self._program.has_input else 0
        if self._read_at is None:
            events |= select.POLLIN
        self._watch(self._program.master, 0 if self._program.exit else events, self._on_program)

    def _on_program(self, event: int) -> None:
        if event & ~select.POLLOUT:
            self._read_program(time.monotonic())
        self._write_program()

    def _read_program(self, now: float) -> None:
        self._read_at = None
        data = self._program.read()
        if data:
            self._keep(data, now)
            if len(data) >= _LARGE:
                self._prompt_until = now + _PROMPT_SECONDS
            elif now >= self._prompt_until:
                self._read_at = now + _COLLECT_SECONDS

    def _keep(self, data: bytes, now: float) -> None:
        self._output.append(data, now)
        answers = self._queries.answer(data)
        if answers:
            self._answer(answers)
        for client in list(self._clients):
            if client.attached and client.is_slow(self._output.end):
                # What it has sent counts: a signal may be there to end this very output.
                self._on_frames(client, select.POLLIN)
                self._drop(client)

    def _answer(self, answers: bytes) -> None:
        """Type answers of the terminal; a program that does not read them gets no more."""
        if self._program.queued >= MOST_ANSWERS:
            return
        if CURSOR in answers:
            position = find_cursor(self._output.tail(LOOK_BACK), *self._program.size)
            answers = answers.replace(CURSOR, b"\x1b[%d;%dR" % position)
        self._program.type(0, answers, MOST_ANSWERS)
        self._write_program()

    def _write_program(self) -> None:
        for number in self._program.write():
            for client in self._clients:
                if number and client.attached:
                    client.out += frame(b"D", OFFSET.pack(number))

    def _on_client(self, event: int) -> None:
        sock = _accepted(self._listener)
        if sock is None:
            return
        if len(self._clients) >= _MOST_CLIENTS:
            sock.close()
            return
        client = Client(sock, time.monotonic())
        self._clients.append(client)
        self._watch(client.fd, select.POLLIN, lambda event: self._on_frames(client, event))

    def _on_frames(self, client: Client, event: int) -> None:
        if not event & ~select.POLLOUT:
            return
        try:
            data = client.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        try:
            for kind, payload in client.frames.feed(data):
                self._take(client, kind, payload)
                if client not in self._clients:
                    return
        except FrameError as error:
            self._refuse(client, BAD_FRAME, str(error))
        except struct.error:
            self._refuse(client, BAD_FRAME, "the payload is too short")

    def _take(self, client: Client, kind: bytes, payload: bytes) -> None:
        """Act on a frame. Raises struct.error for a payload that is too short."""
        if not client.attached:
            if kind == b"A":
                self._attach(client, payload)
            else:
                self._refuse(client, WRONG_KEY, "the first frame has to be A")
            return
        action = self._actions.get(kind)
        if action is not None:
            action(client, payload)

    def _attach(self, client: Client, payload: bytes) -> None:
        key, offset, _, serves = ATTACH.unpack_from(payload)
        if sum(a ^ b for a, b in zip(key, self._launch.key, strict=True)):
            self._refuse(client, WRONG_KEY, "wrong key")
            return
        if offset > self._output.end:
            self._refuse(client, WRONG_OFFSET, f"offset {offset} is after the end, {self._output.end}")
            return
        client.attached, client.serves = True, bool(serves & 1)
        client.frames.limit = MAX_FRAME
        client.cursor = max(offset, self._output.oldest)
        client.replay_end = self._output.end
        program = self._program
        client.out += frame(
            b"H",
            HELLO.pack(
                VERSION,
                self._output.oldest,
                self._output.end,
                program.pid,
                program.started_at,
                self._boot_id,
            ),
        )

    def _type(self, client: Client, payload: bytes) -> None:
        (number,) = OFFSET.unpack_from(payload)
        if number in self._ids:
            if not self._program.waits_for(number):
                client.out += frame(b"D", payload[: OFFSET.size])
        elif self._program.exit is not None:
            self._complain(client, HAS_ENDED, "the program has ended", number)
        elif not self._program.type(number, payload[OFFSET.size :]):
            self._complain(client, INPUT_FULL, "the program does not read its input", number)
        else:
            self._ids.add(number)
            self._read_at, self._prompt_until = None, time.monotonic() + _PROMPT_SECONDS
            self._write_program()

    def _resize(self, client: Client, payload: bytes) -> None:
        self._program.resize(*SIZE.unpack_from(payload))

    def _signal(self, client: Client, payload: bytes) -> None:
        number = payload[0] if payload else 0
        if number in signal.valid_signals():
            self._program.signal(number)
        else:
            self._complain(client, BAD_SIGNAL, f"{number} is not a signal")

    def _acknowledge(self, client: Client, payload: bytes) -> None:
        if self._program.exit is None:
            self._complain(client, STILL_RUNS, "the program has not ended")
        else:
            self._done = True

    def _refuse(self, client: Client, code: int, text: str) -> None:
        """Send an error and close the connection."""
        self._complain(client, code, text)
        try:
            client.sock.send(client.out)
        except OSError:
            pass
        self._drop(client)

    def _complain(self, client: Client, code: int, text: str, number: int = 0) -> None:
        client.out += frame(b"E", ERROR.pack(code, number), text.encode())

    def _drop(self, client: Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._unwatch(client.fd)
        client.sock.close()
        for inside in list(self._streams.values()):
            if inside.client is client:
                self._close_stream(inside)

    def _pump(self, client: Client) -> None:
        """Send as much as the client takes now, but leave time for the program."""
        for _ in range(8):
            self._fill(client)
            if not client.out:
                break
            try:
                sent = client.sock.send(client.out)
            except BlockingIOError:
                break
            except OSError:
                self._drop(client)
                return
            del client.out[:sent]
        events = select.POLLIN | (select.POLLOUT if client.out else 0)
        self._watch(client.fd, events, lambda event: self._on_frames(client, event))
        for inside in list(self._streams.values()):
            if inside.client is client:
                self._watch_stream(inside)

    def _fill(self, client: Client) -> None:
        """Add output that the client has not seen, and the exit behind its end."""
        output = self._output
        while client.attached and len(client.out) < CHUNK and client.cursor < output.end:
            client.cursor = max(client.cursor, output.oldest)
            data = output.read(client.cursor, CHUNK)
            if data:
                client.out += frame(b"O", OFFSET.pack(client.cursor), data)
                client.cursor += len(data)
        exit = self._program.exit
        if client.attached and exit is not None and not client.told_exit and client.cursor == output.end:
            client.told_exit = True
            client.out += frame(b"X", EXIT.pack(*exit))

    def _on_inside(self, event: int) -> None:
        sock = _accepted(self._sibling)
        if sock is None:
            return
        if len(self._streams) >= _MOST_STREAMS:
            sock.close()
            return
        client = next(
            (client for client in reversed(self._clients) if client.attached and client.serves), None
        )
        inside = Inside(sock, self._next_stream, client, time.monotonic())
        self._streams[inside.number] = inside
        self._next_stream += 1
        if client is None:
            inside.out += UNAVAILABLE
            inside.write_ended = True
            self._write_stream(inside)
        else:
            client.out += frame(b"S", STREAM.pack(inside.number))
            self._watch_stream(inside)

    def _watch_stream(self, inside: Inside) -> None:
        if inside.number not in self._streams:
            return
        events = select.POLLOUT if inside.out else 0
        behind = inside.client is not None and len(inside.client.out) >= CHUNK
        if inside.credit and not inside.read_ended and not behind:
            events |= select.POLLIN
        self._watch(inside.fd, events, lambda event: self._on_stream(inside, event))

    def _on_stream(self, inside: Inside, event: int) -> None:
        if event & ~select.POLLOUT and inside.credit and not inside.read_ended:
            self._read_stream(inside)
        if inside.number in self._streams:
            self._write_stream(inside)

    def _read_stream(self, inside: Inside) -> None:
        try:
            data = inside.sock.recv(min(inside.credit, CHUNK))
        except BlockingIOError:
            return
        except OSError:
            self._reset_stream(inside)
            return
        number = STREAM.pack(inside.number)
        if inside.client is not None:
            inside.credit -= len(data)
            inside.client.out += frame(b"B", number, data) if data else frame(b"F", number)
        inside.read_ended = not data

    def _write_stream(self, inside: Inside) -> None:
        """Write what the client has sent, grant it as much more, and close the stream after both ends."""
        try:
            sent = inside.sock.send(inside.out) if inside.out else 0
            del inside.out[:sent]
            if inside.write_ended and not inside.out and not inside.shut:
                inside.shut = True
                inside.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._reset_stream(inside)
            return
        inside.written += sent
        if inside.client is not None and inside.written >= WINDOW // 4:
            inside.client.out += frame(b"N", CREDIT.pack(inside.number, inside.written))
            inside.written = 0
        if inside.read_ended and inside.shut:
            self._close_stream(inside)
        else:
            self._watch_stream(inside)

    def _reset_stream(self, inside: Inside) -> None:
        if inside.client is not None:
            inside.client.out += frame(b"Z", STREAM.pack(inside.number))
        self._close_stream(inside)

    def _close_stream(self, inside: Inside) -> None:
        self._streams.pop(inside.number, None)
        self._unwatch(inside.fd)
        inside.sock.close()

    def _stream_of(self, client: Client, payload: bytes) -> Inside | None:
        """Return the stream of a frame; None if it has ended meanwhile, or is another client's."""
        inside = self._streams.get(STREAM.unpack_from(payload)[0])
        return inside if inside is not None and inside.client is client else None

    def _stream_data(self, client: Client, payload: bytes) -> None:
        inside = self._stream_of(client, payload)
        if inside is None:
            return
        inside.out += payload[STREAM.size :]
        if len(inside.out) + inside.written > WINDOW or inside.write_ended:
            self._reset_stream(inside)
        else:
            self._write_stream(inside)

    def _stream_end(self, client: Client, payload: bytes) -> None:
        if (inside := self._stream_of(client, payload)) is not None:
            inside.write_ended = True
            self._write_stream(inside)

    def _stream_credit(self, client: Client, payload: bytes) -> None:
        if (inside := self._stream_of(client, payload)) is not None:
            inside.credit += CREDIT.unpack_from(payload)[1]
            self._watch_stream(inside)

    def _stream_reset(self, client: Client, payload: bytes) -> None:
        """Close a stream. After its end was sent, what is queued is still written, for a short time."""
        inside = self._stream_of(client, payload)
        if inside is None:
            return
        if inside.write_ended and not inside.read_ended:
            inside.client, inside.credit = None, WINDOW
            inside.linger_until = time.monotonic() + _LINGER_SECONDS
            self._watch_stream(inside)
        else:
            self._close_stream(inside)


def _do_nothing(*_: object) -> None:
    """Let a signal wake the loop."""


def _listen(name: str) -> socket.socket:
    """Listen at a name in the working directory, whose own path may be longer than a socket's may be."""
    _remove(name)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(name)
    sock.listen(64)
    sock.setblocking(False)
    return sock


def _descriptor(listener: socket.socket) -> int:
    """Return the descriptor of the next connection, as accept() of the public module does."""
    return listener._accept()[0]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def _accepted(listener: socket.socket) -> socket.socket | None:
    """Return the next connection; None if there is none, or its process belongs to another user."""
    try:
        descriptor = _descriptor(listener)
    except OSError:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", peer)[1] != os.getuid():
        sock.close()
        return None
    sock.setblocking(False)
    # A larger buffer lets a replay go out in fewer turns; the kernel may allow less.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    return sock


def _remove(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        pass
