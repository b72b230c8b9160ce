"""All sessions: loaded when first needed, kept while there is room."""

from __future__ import annotations

from collections import OrderedDict

from gateway.channel import Address
from gateway.errors import InvalidStateError, NotFoundError, TrunklineError
from gateway.messages import Message
from gateway.session.loading import Loader
from gateway.session.log import DROP_SESSION, SessionRow, read_messages, read_sessions
from gateway.session.session import Render, Session
from gateway.store import Store

_ROOM = 128 * 1024 * 1024
"""How many bytes sessions may take in memory; idle ones beyond that are let go."""
_LOOKS = 50
"""How many sessions are looked at to make room: a message has to be quick where all of them are needed."""


class Sessions:
    """Sessions by id. The least recently used idle ones leave memory when it is full."""

    def __init__(
        self,
        store: Store,
        window: int,
        room: int = _ROOM,
        render: Render = lambda _message: None,
    ) -> None:
        self._store = store
        self._render = render
        self._window = window
        self._room = room
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._loader = Loader(store, window)
        self._weights: dict[str, int] = {}
        self._weight = 0

    def get(self, session_id: str) -> Session | None:
        """A session that is in memory, or None."""
        return self._sessions.get(session_id)

    def loaded(self, session_id: str) -> Session:
        """A session that must be in memory, as one is whose message is being answered."""
        session = self.get(session_id)
        if session is None:
            raise TrunklineError(f"session {session_id!r} is not loaded")
        return session

    def live(self) -> tuple[Session, ...]:
        """The sessions in memory."""
        return tuple(self._sessions.values())

    async def find(self, session_id: str) -> Session:
        """A session that exists. Raises NotFoundError."""
        session = self._sessions.get(session_id) or await self._load(session_id)
        if session is None:
            raise NotFoundError(f"no session {session_id!r}")
        return session

    async def get_or_create(
        self, session_id: str, *, channel: str, owner: str, address: Address, fresh: bool = False
    ) -> Session:
        """The session, made on first use. ``fresh`` says that its id was just minted, so it is not stored."""
        session = self._sessions.get(session_id)
        if session is None and not fresh:
            session = await self._load(session_id)
        if session is None:
            row = SessionRow(id=session_id, channel=channel, owner=owner, address=address)
            session = self._keep(Session(row, [], self._store, self._window, self._render))
        self._sessions.move_to_end(session_id)
        self._weigh(session)
        return session

    async def list(
        self, limit: int = 200, before: int | None = None, before_id: str = ""
    ) -> list[SessionRow]:
        """Sessions that are stored, newest activity first; ``before`` and ``before_id`` continue a page."""
        return await self._store.read(lambda c: read_sessions(c, limit, before, before_id))

    async def read(
        self, session_id: str, after: int = 0, last: int | None = None
    ) -> list[tuple[int, Message]]:
        """The stored messages of a session."""
        return await self._store.read(lambda c: read_messages(c, session_id, after=after, last=last))

    async def delete(self, session_id: str) -> None:
        """Remove a session and its messages. Raises NotFoundError, or InvalidStateError while it answers."""
        session = await self.find(session_id)
        if session.turn is not None or session.pending:
            raise InvalidStateError(f"session {session_id!r} is answering; stop it first")
        self._drop(session_id)
        await self._store.write((DROP_SESSION, (session_id,)))

    def drop_if_empty(self, session: Session) -> None:
        """Remove a session that was made for a message which turned out to be another session's."""
        if session.idle and not session.messages() and not session.row.messages:
            self._drop(session.id)
            if session.saved:
                self._store.submit([(DROP_SESSION, (session.id,))])

    def close(self, session_id: str) -> None:
        """Abort what a session runs and let it leave memory when it is done."""
        session = self._sessions.get(session_id)
        if session is not None and session.turn is not None:
            session.turn.abort()

    async def _load(self, session_id: str) -> Session | None:
        stored = await self._loader.load(session_id)
        if stored is None:
            return None
        return self._keep(Session(*stored, self._store, self._window, self._render))

    def _keep(self, session: Session) -> Session:
        present = self._sessions.get(session.id)
        if present is not None:
            return present
        self._sessions[session.id] = session
        self._weigh(session)
        return session

    def _weigh(self, session: Session) -> None:
        """Count what a session takes by now: it grows while it is kept."""
        weight = session.weight
        self._weight += weight - self._weights.get(session.id, 0)
        self._weights[session.id] = weight
        if self._weight > self._room:
            self._make_room()

    def _drop(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        self._weight -= self._weights.pop(session_id, 0)

    def _make_room(self) -> None:
        """Let go of the oldest idle sessions; one that somebody needs is as good as asked for just now."""
        for _ in range(min(_LOOKS, len(self._sessions) - 1)):
            if self._weight <= self._room:
                return
            oldest = next(iter(self._sessions.values()))
            if oldest.idle:
                self._drop(oldest.id)
            else:
                self._sessions.move_to_end(oldest.id)
