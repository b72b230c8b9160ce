"""One session: the connection to its keeper, the rendered screen, and the machine that decides what is typed.

In: output of the program, and input of users. Out: typed bytes, records that are stored before anything is
typed, and events once they are durable. ``sessions`` makes sessions; the page's terminal watches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct, convert, structs, to_builtins

from gateway import TrunklineError
from plugins.coding_agents import machine
from plugins.coding_agents.adapters.contract import Adapter, Fact
from plugins.coding_agents.errors import KeeperLostError, NoInputError, NotReadyError, OutputGoneError
from plugins.coding_agents.keeper_client import (
    ATTACH_SECONDS,
    Connect,
    Exit,
    InputFullError,
    KeeperAwayError,
    KeeperClient,
    KeeperError,
    KeeperSilentError,
    ProgramEndedError,
    Stream,
)
from plugins.coding_agents.machine import Event, MachineState, View
from plugins.coding_agents.records import AskedQuestion, Choice, Notice, NoticeKind, SessionRecord
from plugins.coding_agents.screen import Screen

log = structlog.get_logger("trunkline.coding_agents")

WATCHED_SECONDS = 0.05
"""The shortest time between two renderings of a screen that a user watches."""
UNWATCHED_SECONDS = 0.25
"""The same for other screens: questions and ends need no more."""
REPLAY_SECONDS = 0.005
"""The shortest pause after a rendering: other tasks run then."""
REPLAY_BYTES = 512 * 1024
"""Output before the last known end that is rendered again after a restart."""
KILL_SECONDS = 5.0
"""The time between SIGTERM and SIGKILL."""
AWAY_MS = 2_000
"""The time between two attempts to reach a keeper on the machine of another node."""
MOST_OUTPUT = 1024 * 1024
"""Bytes of one answer with output."""

_FEED_BYTES = 256 * 1024
_WRITE_SECONDS = 60.0
_FULL_SECONDS = 1.0
_READ_SECONDS = 10.0
_END_SECONDS = 20.0
_END_TRIES = 20
_ID_BLOCK = 1_000
_MOST_KEYS = 100
_LONGEST_ID = 200
_QUIET = (machine.ToolRunning, machine.Stalled)
"""Events that change nothing which must be stored."""

Unregister = Callable[[], None]


class SessionParts(Struct, frozen=True):
    """The parts that all sessions share: storing a record, starting a task, and a clock in milliseconds.

    ``replaying`` lets one session at a time render earlier output again: many at once, after a restart, would
    keep the gateway from all other work.
    """

    save: Callable[[SessionRecord], Awaitable[None]]
    start_task: Callable[..., asyncio.Task[None]]
    clock: Callable[[], int]
    replaying: asyncio.Lock


class Session:
    """A session. An ended one has no program; its record stays.

    ``screen`` is None until the session is attached.
    """

    def __init__(
        self, record: SessionRecord, adapter: Adapter, folder: Path, parts: SessionParts, state: MachineState
    ) -> None:
        self.record = record
        self.adapter = adapter
        self.folder = folder
        self.state = state
        self.screen: Screen | None = None
        self.end = record.offset
        """The offset behind the output that arrived."""
        self.on_stream: Callable[[Stream], None] | None = None
        self.connect: Connect | None = None
        """Reaches a keeper on another machine."""
        self.ended = asyncio.Event()
        self._parts = parts
        self._client: KeeperClient | None = None
        self._incoming = bytearray()
        self._replay_end = 0
        """The end of the output that is rendered again, 0 once it is."""
        self._replay_mark: int | None = None
        """The letters that the screen had got at that end."""
        self._exit: Exit | None = None
        self._gone = False
        self._kills = False
        """The program is to be killed, also at a new connection: the keeper drops a client that is behind."""
        self._confirmed: int | None = None
        self._wake = asyncio.Event()
        self._due: int | None = None
        self._lock = asyncio.Lock()
        self._listeners: list[Callable[[Event | None], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self.driver: object | None = None
        """The terminal that may type now."""
        if record.is_ended:
            self.ended.set()

    @property
    def view(self) -> View:
        """The screen as the machine reads it."""
        if self.screen is None:
            return View((), (0, 0), 0)
        screen = self.screen
        return View(screen.lines(), screen.cursor, screen.version, screen.bracketed_paste)

    @property
    def is_attached(self) -> bool:
        """Return whether the keeper is connected."""
        return self._client is not None and not self._gone

    def subscribe(self, listener: Callable[[Event | None], None]) -> Unregister:
        """Call ``listener`` with each event of the machine once it is durable, and None for other changes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def on_rendered(self, watcher: Callable[[], None]) -> Unregister:
        """Call ``watcher`` after each rendering with changes; the screen is rendered often from now on."""
        self._watchers.append(watcher)
        self._wake.set()
        return lambda: self._watchers.remove(watcher)

    async def attach(self, seconds: float = ATTACH_SECONDS) -> None:
        """Connect to the keeper; ``run`` renders its output. Raises KeeperLostError and KeeperError.

        A keeper that does not answer for ``seconds`` is a KeeperSilentError.
        """
        offset = max(0, self.record.offset - REPLAY_BYTES)
        client = await self._connect(offset, seconds)
        if client.hello.end - offset > 2 * REPLAY_BYTES:
            # The offset is stored with events and may be old: to render up to 16 MiB since then would take
            # many seconds. The screen needs the end of them.
            await client.close()
            client = await self._connect(client.hello.end - REPLAY_BYTES, seconds)
        self._replay_end, self._replay_mark = client.hello.end, None
        now = self._parts.clock()
        if self.state.status == "pending":
            self.state = machine.begin(self.state, now)
        else:
            self.state = machine.recover(self.state, now)
        self.state = structs.replace(self.state, next_id=max(self.state.next_id, self.record.reserved + 1))
        hello = client.hello
        known = (self.record.pid, self.record.boot_id, self.record.status)
        if known != (hello.pid, hello.boot_id, self.state.status):
            await self._store(pid=hello.pid, boot_id=hello.boot_id, status=self.state.status)
        self._wake.set()

    async def run(self) -> None:
        """Render output and let the machine act, until the program has ended."""
        loop = asyncio.get_running_loop()
        rendered = 0.0
        while not self.ended.is_set():
            await self._sleep()
            if self._is_replaying():
                await self._replay()
                continue
            pause = WATCHED_SECONDS if self._watchers else UNWATCHED_SECONDS
            await asyncio.sleep(max(REPLAY_SECONDS, rendered + pause - loop.time()))
            self._wake.clear()
            async with self._lock:
                await self._advance()
            rendered = loop.time()

    async def detach(self) -> None:
        """Close the connection; the program keeps running."""
        if self._client is not None:
            await self._client.close()

    async def send_text(self, text: str, key: str = "") -> Choice | None:
        """Send a text: it is durable when this returns, and typed once. With a known ``key`` do nothing.

        A word such as y answers the open question instead; returns that answer. Raises NotReadyError unless
        the program takes text now, and NoInputError.
        """
        async with self._lock:
            if self._is_done(key):
                return None
            self._check_running()
            await self._present()
            now = self._parts.clock()
            question = self.state.question
            choice = None if question is None else _WORDS.get(text.strip().lower())
            if question is not None and choice is not None:
                self.state = machine.answer(self.adapter, self.state, self.view, question.digest, choice, now)
            else:
                self.state = machine.send_text(self.adapter, self.state, self.view, text, now)
            await self._queued(key)
            return choice

    async def send_keys(self, keys: Sequence[str], key: str = "") -> None:
        """Type keys by their names, such as ``enter``, with any screen. Raises NoInputError."""
        async with self._lock:
            if self._is_done(key):
                return
            if not keys:
                raise NoInputError("neither text nor keys were given")
            self._check_running()
            self.state = machine.send_keys(self.state, keys, self._parts.clock())
            await self._queued(key)

    def asks(self, digest: str) -> bool:
        """Return whether a question waits for its answer."""
        asked = self.state.question
        return asked is not None and asked.digest == digest and self.state.answered != digest

    async def answer(self, digest: str, choice: Choice, key: str = "") -> None:
        """Answer a question with its own key, once for each ``key``.

        Raises StaleQuestionError unless the same question is on the screen.
        """
        async with self._lock:
            if self._is_done(key):
                return
            await self._present()
            self.state = machine.answer(
                self.adapter, self.state, self.view, digest, choice, self._parts.clock()
            )
            await self._queued(key)

    async def type_raw(self, data: bytes) -> None:
        """Type the bytes of a driver."""
        async with self._lock:
            number = self.state.next_id
            self.state = structs.replace(self.state, next_id=number + 1)
            if number > self.record.reserved:
                # Durable before it is used: after a crash an id must not name other bytes.
                await self._store(reserved=number + _ID_BLOCK)
            client = self._connected()
        self._note_activity()
        with contextlib.suppress(ProgramEndedError):
            await client.write(number, data)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        client = self._connected()
        if self.screen is not None:
            self.screen.resize(rows, columns)
            rows, columns = self.screen.rows, self.screen.columns
        client.resize(rows, columns)
        self._wake.set()

    async def stop(self, *, force: bool = False, reason: str = "user") -> None:
        """End the program and wait for it: SIGTERM, after 5 s or with ``force`` SIGKILL."""
        async with self._lock:
            if self.ended.is_set():
                return
            await self._advance()
            if self.state.status != "stopping":
                await self._commit(machine.stop(self.state), stop_reason=reason)
        await self.end_program(force=force)

    async def end_program(self, *, force: bool = False) -> None:
        """Send the signals of ``stop`` and wait for the end."""
        with contextlib.suppress(KeeperLostError):
            if not force:
                # An interactive shell ignores SIGTERM.
                self._signal(signal.SIGHUP, signal.SIGTERM)
                await self._wait_end(KILL_SECONDS)
        self._kills = not self.ended.is_set()
        for _ in range(_END_TRIES):
            if self.ended.is_set():
                return
            with contextlib.suppress(KeeperLostError):
                self._signal(signal.SIGKILL)
            await self._wait_end(_END_SECONDS / _END_TRIES)
        log.warning("a program does not end; it is killed when its keeper answers", session=self.record.id)

    def pause(self, *, paused: bool, confined: bool) -> None:
        """Suspend all processes of the program, or let them continue. Raises KeeperLostError."""
        # Of a sandbox, SIGSTOP would stop only the launcher; at this signal it stops all that is in there.
        stop = signal.SIGTSTP if confined else signal.SIGSTOP
        self._signal(stop if paused else signal.SIGCONT)

    async def tell(self, kind: NoticeKind, text: str) -> None:
        """Store a new message for the chat."""
        async with self._lock:
            await self._store(**self._notice(self.record, kind, text))
        self._publish(None)

    async def report(self, fact: Fact) -> None:
        """Note a report of the program's hook: its activity, its own session, and its cost."""
        async with self._lock:
            if self.ended.is_set():
                return
            # What was typed before the report is confirmed first.
            await self._advance()
            changes: dict[str, Any] = {}
            if fact.session and fact.session != self.record.program_session:
                changes["program_session"] = fact.session[:_LONGEST_ID]
            if fact.cost_usd is not None and fact.cost_usd != self.record.cost_usd:
                changes["cost_usd"] = fact.cost_usd
            if changes:
                await self._store(**changes)
            self.state = machine.report(self.state, fact, self._parts.clock())
            await self._advance()
        if changes:
            self._publish(None)
        self._wake.set()

    async def change(self, **changes: Any) -> None:
        """Store changes of the record."""
        async with self._lock:
            await self._store(**changes)

    async def lose(self, reason: str) -> None:
        """Note that the program ended without the gateway's notice."""
        async with self._lock:
            await self._lose(reason)

    async def read_output(self, after: int, most: int = MOST_OUTPUT) -> bytes:
        """Return output from an offset, "" at its end. Raises OutputGoneError if it is no longer kept."""
        parts = bytearray()
        enough = asyncio.Event()

        def take(_offset: int, data: bytes) -> None:
            parts.extend(data)
            enough.set()

        if self.ended.is_set():
            raise OutputGoneError("the session has ended; its output is no longer kept", oldest=self.end)
        after = min(after, self.end)
        client = await KeeperClient.attach(
            self.folder,
            bytes.fromhex(self.record.key),
            after,
            on_output=take,
            on_exit=lambda _exit: enough.set(),
            on_gone=enough.set,
            connect=self.connect,
        )
        try:
            hello = client.hello
            if hello.oldest > after:
                raise OutputGoneError(
                    f"output before offset {hello.oldest} is no longer kept", oldest=hello.oldest
                )
            wanted = min(most, hello.end - after)
            async with asyncio.timeout(_READ_SECONDS):
                while len(parts) < wanted:
                    enough.clear()
                    await enough.wait()
        finally:
            await client.close()
        return bytes(parts[:most])

    def tail(self, count: int) -> tuple[str, ...]:
        """Return the last lines of the screen that are not empty."""
        lines = [line for line in self.view.lines if line.strip()]
        return tuple(lines[-count:])

    # Below this line: with the lock, or called by the client.

    async def _connect(self, offset: int, seconds: float) -> KeeperClient:
        """Attach to the keeper with an empty screen, for the output from an offset."""
        self.screen = Screen()
        self._incoming.clear()
        self.end = offset
        self._gone = False
        self._client = await KeeperClient.attach(
            self.folder,
            bytes.fromhex(self.record.key),
            offset,
            on_output=self._take_output,
            on_exit=self._take_exit,
            on_gone=self._note_gone,
            on_stream=self.on_stream,
            seconds=seconds,
            connect=self.connect,
        )
        if self._kills:
            self._client.signal(signal.SIGKILL)
        return self._client

    def _take_output(self, offset: int, data: bytes) -> None:
        if offset != self.end:
            log.warning("output of a session is lost", session=self.record.id, bytes=offset - self.end)
        self.end = offset + len(data)
        self._incoming += data
        if len(self._incoming) > _FEED_BYTES and self.screen is not None:
            self.screen.feed(bytes(self._incoming))
            self._incoming.clear()
        if self.end > self._replay_end:
            self._note_activity()
        self._wake.set()

    def _take_exit(self, exited: Exit) -> None:
        self._exit = exited
        self._wake.set()

    def _note_gone(self) -> None:
        self._gone = True
        self._wake.set()

    def _note_activity(self) -> None:
        # In memory: ``sessions`` stores it from time to time.
        self.record = structs.replace(self.record, last_activity=self._parts.clock())

    def _connected(self) -> KeeperClient:
        if self._client is None or self._gone or self.ended.is_set():
            raise KeeperLostError(f"the terminal of session {self.record.short_id} is not connected")
        return self._client

    def _check_running(self) -> None:
        if self.ended.is_set() or self.state.status in ("pending", "stopping"):
            raise NotReadyError(
                f"session {self.record.short_id} of {self.adapter.title} is {self.record.status}"
            )

    def _signal(self, *numbers: int) -> None:
        client = self._connected()
        for number in numbers:
            client.signal(number)

    async def _wait_end(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()

    async def _sleep(self) -> None:
        """Wait for output, for a command, or for the time that the machine named."""
        seconds = None if self._due is None else max(0.0, (self._due - self._parts.clock()) / 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _is_replaying(self) -> bool:
        return self._replay_end > 0

    async def _replay(self) -> None:
        """Render a piece of the output of an earlier time, and leave as much time to all other work."""
        async with self._parts.replaying:
            self._wake.clear()
            begun = time.monotonic()
            async with self._lock:
                await self._advance()
            await asyncio.sleep(max(REPLAY_SECONDS, time.monotonic() - begun))

    async def _present(self) -> None:
        """Bring screen and state up to date; after a restart, wait until the output was rendered again."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                while self._is_replaying():
                    await asyncio.sleep(REPLAY_SECONDS)
                    self._render()
        except TimeoutError:
            raise NotReadyError(
                f"the screen of session {self.record.short_id} is still rendered; try again in some seconds"
            ) from None
        await self._advance()
        # ``run`` sleeps until a time that may have changed.
        self._wake.set()

    def _render(self) -> None:
        screen = self.screen
        if screen is None:
            return
        before = screen.version
        data = bytes(self._incoming)
        self._incoming.clear()
        screen.feed(data)
        if self._replay_end and self.end >= self._replay_end:
            # A program that never pauses must not make a replay of its new output.
            self._replay_mark = screen.received if self._replay_mark is None else self._replay_mark
            if screen.received - screen.pending >= self._replay_mark:
                self._replay_end = 0
        if screen.pending:
            self._wake.set()
        if screen.version != before:
            for watcher in tuple(self._watchers):
                watcher()

    async def _advance(self) -> None:
        """Render what arrived, and let the machine act on it."""
        if self.ended.is_set():
            return
        if self._gone:
            await self._reattach()
            return
        self._render()
        if self._client is None or self._is_replaying():
            return
        now = self._parts.clock()
        if self._confirmed is not None:
            confirmed, self._confirmed = self._confirmed, None
            await self._commit(machine.confirm(self.state, confirmed, now))
        if self._exit is not None:
            await self._finish(self._exit)
            return
        await self._commit(machine.step(self.adapter, self.state, self.view, now))

    async def _queued(self, key: str) -> None:
        """Store input that was queued, and hand it out if it can be typed now."""
        keys = (*self.record.done_keys, key)[-_MOST_KEYS:] if key else self.record.done_keys
        await self._store(done_keys=keys, last_activity=self._parts.clock())
        await self._advance()
        # ``run`` may sleep without an end: the time that the machine named now is new to it.
        self._wake.set()

    def _is_done(self, key: str) -> bool:
        return bool(key) and key in self.record.done_keys

    async def _commit(self, done: machine.Step, **changes: Any) -> None:
        """Store a step of the machine, type what it says, and publish its events."""
        self.state, self._due = done.state, done.due
        events = done.events
        if changes or any(not isinstance(event, _QUIET) for event in events):
            record = self.record
            for event in events:
                record = structs.replace(record, **self._changes(record, event))
            self.record = record
            await self._store(**changes)
        for event in events:
            if isinstance(event, machine.Type):
                self._parts.start_task(self._write(event), name=f"typing in {self.record.id}")
            else:
                self._publish(event)

    def _changes(self, record: SessionRecord, event: Event) -> dict[str, Any]:
        """Return the changes of the record that an event means."""
        now = self._parts.clock()
        match event:
            case machine.StatusChanged():
                waits = event.new in ("blocked", "authenticating")
                return {
                    "status": event.new,
                    "task_done": self.state.completed,
                    "blocked_at": now if waits else 0,
                    "warned": record.warned and waits,
                }
            case machine.TaskDone():
                return {"task_done": True, **self._notice(record, "finished", event.output)}
            case machine.Question(answering=False, question=asked):
                question = AskedQuestion(
                    key=f"{record.id}:{record.asked}",
                    digest=asked.digest,
                    tool=asked.tool or asked.type,
                    prompt=asked.prompt,
                    detail=asked.detail,
                    folder=asked.folder or record.workdir,
                    at=now,
                    answerable=bool(asked.yes and asked.no),
                )
                return {"question": question, "asked": record.asked + 1}
            case machine.QuestionGone() if record.question and record.question.digest == event.digest:
                return dict(record.without_question)
            case machine.LoginRequired(login=login):
                text = "\n".join(filter(None, (login.instructions, login.url, login.device_code)))
                return self._notice(record, "blocked", text)
            case machine.InputFailed(reason=reason):
                return self._notice(record, "notice", f"Not sent: {reason}.")
            case machine.Exited():
                kind: NoticeKind = "failed" if self.state.status == "error" else "stopped"
                return {
                    "exit_status": event.exit_status,
                    "error": self.state.error,
                    "ended_at": now,
                    **self._notice(record, kind, self.state.error),
                }
            case _:
                return {}

    def _notice(self, record: SessionRecord, kind: NoticeKind, text: str) -> dict[str, Any]:
        notice = Notice(f"{record.id}:n{record.told}", kind, text)
        return {"notices": (*record.notices, notice), "told": record.told + 1}

    async def _store(self, **changes: Any) -> None:
        # The rules come from the settings again after a restart.
        plain = to_builtins(structs.replace(self.state, rules=()))
        self.record = structs.replace(self.record, machine=plain, offset=self.end, **changes)
        await self._parts.save(self.record)

    def _publish(self, event: Event | None) -> None:
        for listener in tuple(self._listeners):
            listener(event)

    async def _write(self, event: machine.Type) -> None:
        """Write bytes that the machine handed out. After a lost connection they are handed out again."""
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                while True:
                    try:
                        await self._connected().write(event.id, event.data)
                        break
                    except InputFullError:
                        await asyncio.sleep(_FULL_SECONDS)
        except (TimeoutError, ProgramEndedError):
            log.warning("input was not taken by a program", session=self.record.id, command=event.id)
        except KeeperLostError:
            return
        self._confirmed = event.id
        self._wake.set()

    async def _reattach(self) -> None:
        """Connect again: the gateway was too slow for the keeper, or the keeper or its node has ended."""
        self._client = None
        shown, end = self.screen, self.end
        try:
            await self.attach()
        except KeeperSilentError as error:
            self._gone = True
            # Users see the last screen until there is another one.
            self.screen, self.end = shown, end
            if isinstance(error, KeeperAwayError):
                self._due = self._parts.clock() + AWAY_MS
            else:
                self._wake.set()
        except (KeeperError, KeeperLostError) as error:
            await self._lose(str(error))

    async def _lose(self, reason: str) -> None:
        if self.ended.is_set():
            return
        old = self.state.status
        self.state = structs.replace(
            self.state, status="lost", error=reason, question=None, outbox=(), in_flight=None
        )
        changes = {**self.record.without_question, **self._notice(self.record, "lost", reason)}
        await self._store(status="lost", error=reason, ended_at=self._parts.clock(), blocked_at=0, **changes)
        self.ended.set()
        self._publish(machine.StatusChanged(old, "lost"))

    async def _finish(self, exited: Exit) -> None:
        """Store the end of the program, and only then acknowledge it to the keeper."""
        await self._commit(machine.exited(self.state, exited.status))
        with contextlib.suppress(TrunklineError):
            await self._connected().acknowledge_exit()
        self.ended.set()
        self._publish(None)


_WORDS: dict[str, Choice] = {"y": "once", "yes": "once", "n": "deny", "no": "deny"}
"""Texts that answer an open question instead of being typed."""


def log_event(session: Session, event: machine.Event | None) -> None:
    """Log an event without its text, which may have secrets."""
    if event is not None:
        name, record = type(event).__name__, session.record
        log.info("event of a session", name=name, status=record.status, session=record.id)


def restored(record: SessionRecord, fresh: MachineState) -> MachineState:
    """Return the machine's state of a stored session; rules and settings are those of ``fresh``."""
    if not record.machine:
        return fresh
    stored = convert(record.machine, MachineState)
    return structs.replace(stored, rules=fresh.rules, stall_ms=fresh.stall_ms, known=fresh.known)
