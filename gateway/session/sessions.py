"""All sessions: loaded on first use, kept in memory while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from weakref import WeakValueDictionary

from gateway.contract.channel import Address
from gateway.contract.errors import InvalidStateError, NotFoundError, TrunklineError
from gateway.contract.events import AgentEvent
from gateway.contract.messages import Message
from gateway.contract.services import SessionView, Unregister
from gateway.events.bus import EventBus, OwnedEvents
from gateway.events.types import AgentProgress, SessionCreated, SessionDeleted, SessionResumed
from gateway.session.loader import SessionLoader
from gateway.session.log import (
    DROP_CHILDREN,
    DROP_SESSION,
    ChildSession,
    ErrorRecord,
    SessionFilter,
    SessionRow,
    ToolRecord,
    count_errors,
    read_child_sessions,
    read_children,
    read_errors,
    read_messages,
    read_nested,
    read_sessions,
    read_tool_calls,
    read_unfinished,
)
from gateway.session.redaction import NO_SECRETS, Redactor
from gateway.session.session import LOG_WINDOW, Post, Render, Session
from gateway.store import Store
from gateway.trail.deletion import session_ops

_MAX_BYTES = 128 * 1024 * 1024
"""Maximum memory of all sessions, in bytes; idle ones beyond it are dropped."""
_MAX_CHECKED = 50
"""Maximum number of sessions checked to make room: accepting a message must be fast even if all are busy."""


class Sessions:
    """Sessions by id. The least recently used idle ones leave memory when it is full."""

    def __init__(
        self,
        store: Store,
        window: int = LOG_WINDOW,
        max_bytes: int = _MAX_BYTES,
        render: Render = lambda _message: None,
        redactor: Redactor = NO_SECRETS,
        events: EventBus | None = None,
    ) -> None:
        self.events = EventBus() if events is None else events
        self.post: Post | None = None
        """Callback that places messages that plugins append; until it is set they are only stored."""
        self.on_load: Callable[[Session], None] = lambda _session: None
        """Callback for each session that enters memory, before any user of it sees it."""
        self.on_delete: Callable[[str], Awaitable[None]] | None = None
        """Callback that deletes what else is kept of a deleted session."""
        self.redactor = redactor
        self._store = store
        self._render = render
        self._window = window
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._held = WeakValueDictionary[str, Session]()
        """These, and those that left memory but are still in use: a second object would not know the turn."""
        self._loader = SessionLoader(store, window)
        self._weights: dict[str, int] = {}
        self._weight = 0

    def get(self, session_id: str) -> Session | None:
        """Return a session that is in memory, or None."""
        return self._held.get(session_id)

    def get_loaded(self, session_id: str) -> Session:
        """Return a session that must be in memory, because a message of it is being answered."""
        session = self.get(session_id)
        if session is None:
            raise TrunklineError(f"session {session_id!r} is not loaded")
        return session

    def live(self) -> tuple[Session, ...]:
        """Return the sessions in memory, also those that only their users keep there."""
        return tuple(self._held.values())

    async def find(self, session_id: str) -> Session:
        """Return an existing session. Raises NotFoundError."""
        session = self.get(session_id) or await self._load(session_id)
        if session is None:
            raise NotFoundError(f"no session {session_id!r}")
        return session

    async def get_or_create(
        self, session_id: str, *, channel: str, owner: str, address: Address, fresh: bool = False
    ) -> Session:
        """Return the session, created on first use. ``fresh`` marks an id that was just generated and is not
        stored.
        """
        session = self.get(session_id)
        # A fresh id cannot be in the database, so its query is spared.
        if session is None and not fresh:
            session = await self._load(session_id)
        if session is None:
            row = SessionRow(id=session_id, channel=channel, owner=owner, address=address)
            session = self._add(self._create(row, [], []))
            if self.events.wants(SessionCreated):
                self.events.emit(SessionCreated(session_id, channel, owner))
        # A chat that the bot wrote in first belongs to the first user who writes there.
        session.row.owner = session.row.owner or owner
        self.keep(session)
        return session

    def keep(self, session: Session) -> None:
        """Keep a session in memory as the newest, also one that left it meanwhile, unless it was deleted."""
        if self.get(session.id) is session:
            self._sessions[session.id] = session
            self._sessions.move_to_end(session.id)
            # Each time, because it grows.
            self._weight += session.weight - self._weights.get(session.id, 0)
            self._weights[session.id] = session.weight
            if self._weight > self._max_bytes:
                self._make_room()

    def temporary(self, session_id: str, channel: str, owner: str, address: Address) -> Session:
        """Return a new session that is neither stored nor found by its id."""
        return self._create(SessionRow(id=session_id, channel=channel, owner=owner, address=address), [], [])

    async def list(
        self,
        limit: int = 200,
        before: int | None = None,
        before_id: str = "",
        wanted: SessionFilter | None = None,
    ) -> list[SessionRow]:
        """Read stored sessions, newest activity first; ``before`` and ``before_id`` continue a page."""
        return await self._store.read(lambda c: read_sessions(c, limit, before, before_id, wanted))

    async def read(
        self, session: str, after: int = 0, last: int | None = None, upto: int | None = None
    ) -> list[tuple[int, Message]]:
        """Read the stored messages of a session; see ``read_messages``."""
        return await self._store.read(lambda c: read_messages(c, session, after=after, upto=upto, last=last))

    async def errors(self, session_id: str, last: int) -> tuple[int, list[ErrorRecord]]:
        """Return the number of errors in a session's answers, and the newest of them, oldest first."""
        return await self._store.read(
            lambda c: (count_errors(c, session_id), read_errors(c, session_id, last))
        )

    async def tool_calls(self, session_id: str, last: int) -> list[ToolRecord]:
        """Return the newest tool calls of a session with their results, oldest first."""
        return await self._store.read(lambda c: read_tool_calls(c, session_id, last))

    async def children(self, session: Session) -> list[SessionRow]:
        """Read the sessions of the nested runs that a session's tool calls started, oldest first."""
        return await self._store.read(lambda c: read_children(c, session.row))

    async def child_sessions(self, session: Session, messages: Sequence[Message]) -> tuple[ChildSession, ...]:
        """Read the nested runs of some messages of a session; see ``read_child_sessions``."""
        return await self._store.read(lambda c: read_child_sessions(c, session.row, messages))

    async def unfinished(self, root: str) -> list[tuple[str, str]]:
        """Read the sessions of a conversation's nested runs without an answer, and their last messages."""
        return await self._store.read(lambda c: read_unfinished(c, root))

    async def delete(self, session_id: str) -> None:
        """Remove a session, its messages and its nested runs.

        Raises NotFoundError, or InvalidStateError during a turn and for a session of a nested run.
        """
        session = await self.find(session_id)
        if session.row.root is not None:
            raise InvalidStateError(
                f"session {session_id!r} is deleted with its conversation {session.row.root!r}"
            )
        nested = await self._store.read(lambda c: read_nested(c, session_id))
        also = await self._store.read(lambda c: session_ops(c, session_id, nested))
        # Checked after the reads: a message that arrived during them must not lose its session.
        if session.turn is not None or session.pending:
            raise InvalidStateError(f"session {session_id!r} has a running or waiting turn; stop it first")
        for each in (session_id, *nested):
            self._drop(each)
            self._held.pop(each, None)
        await self._store.write(*also, (DROP_SESSION, (session_id,)), (DROP_CHILDREN, (session_id,)))
        for each in (session_id, *nested):
            if self.on_delete is not None:
                await self.on_delete(each)
            self.events.emit(SessionDeleted(each))

    def drop_if_empty(self, session: Session) -> None:
        """Remove a session that was created for a message which belongs to another session."""
        # After an undo it is empty, too, but has messages that can be shown again.
        if session.idle and session.is_empty and not (session.row.messages or session.row.undone_at):
            self._drop(session.id)
            self._held.pop(session.id, None)
            if session.saved:
                self._store.submit([(DROP_SESSION, (session.id,))])

    def close(self, session_id: str) -> None:
        """Abort the running turn of a session; an idle session leaves memory later."""
        session = self.get(session_id)
        if session is not None and session.turn is not None:
            session.turn.abort()

    async def _load(self, session_id: str) -> Session | None:
        stored = await self._loader.load(session_id)
        if stored is None:
            return None
        session, row = self._add(self._create(*stored)), stored[0]
        if session.row is row and self.events.wants(SessionResumed, session_id):
            self.events.emit(SessionResumed(session_id, row.channel, row.owner, row.messages))
        return session

    def _create(
        self, row: SessionRow, log: list[tuple[int, Message]], injected: Sequence[Message]
    ) -> Session:
        return Session(
            row,
            log,
            injected,
            self._store,
            self._window,
            self._render,
            self.post,
            self.redactor,
            self.events,
        )

    def _add(self, session: Session) -> Session:
        # Two requests may have loaded it at once; both must get the same object, which holds the turn.
        present = self._held.setdefault(session.id, session)
        if present is session:
            self.on_load(session)
            self.keep(session)
        return present

    def _drop(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        self._weight -= self._weights.pop(session_id, 0)

    def _make_room(self) -> None:
        """Drop the least recently used idle sessions; a busy one moves to the end of the order."""
        # The session at hand is the last in order and must stay: its caller is about to use it.
        for _ in range(min(_MAX_CHECKED, len(self._sessions) - 1)):
            if self._weight <= self._max_bytes:
                return
            oldest = next(iter(self._sessions.values()))
            if oldest.idle:
                self._drop(oldest.id)
            else:
                self._sessions.move_to_end(oldest.id)


class OwnedSessions:
    """The sessions as one plugin sees them: listeners that it adds to a session end with it."""

    def __init__(self, sessions: Sessions, events: OwnedEvents) -> None:
        self._sessions = sessions
        self._events = events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)

    def get(self, session_id: str) -> SessionView | None:
        """Return a session that is in memory, or None."""
        session = self._sessions.get(session_id)
        return None if session is None else self._owned(session)

    def live(self) -> Sequence[SessionView]:
        """Return the sessions that are in memory."""
        return [self._owned(session) for session in self._sessions.live()]

    async def find(self, session_id: str) -> SessionView:
        """Return a stored session. Raises NotFoundError."""
        return self._owned(await self._sessions.find(session_id))

    def _owned(self, session: Session) -> SessionView:
        return cast("SessionView", _OwnedSession(session, self._events))


class _OwnedSession:
    def __init__(self, session: Session, events: OwnedEvents) -> None:
        self._session = session
        self._events = events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def subscribe(self, listener: Callable[[AgentEvent], None]) -> Unregister:
        """Call ``listener`` with the events of turns, until the returned function is called."""
        return self._events.subscribe(
            AgentProgress, lambda progress: listener(progress.event), session=self._session.id
        )
