"""Moved chats: a chat that continues the session of another chat.

Messages of both chats belong to one conversation; an answer goes to the chat of its question.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import and_, select

from gateway.access.codes import Code, Codes
from gateway.access.links import MOST_CODES, VALID_MS, AccountLinks
from gateway.access.people import UserRef
from gateway.contract.messages import now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write, audit_op

PUT_MOVED = Write("upsert", 68, t.moved_chat, "chat session channel user_id at", key="chat")
DROP_MOVED = Write("delete", 69, t.moved_chat, "chat", key="chat")


class MovedChats:
    """The map from chats to the sessions they continue; in memory, because every message needs it."""

    def __init__(
        self, store: Store, codes: Codes, links: AccountLinks, clock: Callable[[], int] = now_ms
    ) -> None:
        self._store = store
        self._codes = codes
        self._links = links
        self._clock = clock
        self._sessions: dict[str, str] = {}
        self._shared: set[str] = set()

    async def load(self) -> None:
        """Read the map. Call it once, before the first message."""
        query = select(t.moved_chat.c.chat, t.moved_chat.c.session)
        self._sessions = await self._store.read(lambda c: {row.chat: row.session for row in c.execute(query)})
        self._shared = set(self._sessions.values())

    def session_of(self, chat: str) -> str:
        """Return the session of a chat: its own unless it was moved."""
        return self._sessions.get(chat, chat)

    def is_shared(self, session: str) -> bool:
        """Return whether several chats continue a session, or did since the start: messages may be queued."""
        return session in self._shared

    async def begin(self, user: UserRef, session: str) -> Code | None:
        """Issue a code that continues a session in another chat; None after too many in an hour."""
        return await self._codes.give("move", user, valid_ms=VALID_MS, most=MOST_CODES, session=session)

    async def finish(self, given: str, by: UserRef, chat: str, *, any_owner: bool = False) -> str:
        """Let a chat continue the session of a code. Returns the session.

        The code must belong to the same person; with ``any_owner``, for admins, it may be any user's. Raises
        NotFoundError for another code, or TooManyRequestsError.
        """
        same = {by} | await self._links.same(by)
        async with self._codes.lock:
            code = await self._codes.find("move", given, by, lambda c: any_owner or c.user in same)
            audit = audit_op(str(by), "move", chat, f"session {code.session} of {code.user}")
            await self._store.write(self._move(by, chat, code.session), code.use(), audit)
            self._set(chat, code.session)
        return code.session

    async def assign(self, user: UserRef, chat: str, session: str, *ops: Op) -> None:
        """Let a chat continue a session, in one transaction with other writes."""
        audit = audit_op(str(user), "move", chat, f"session {session}")
        await self._store.write(*ops, self._move(user, chat, session), audit)
        self._set(chat, session)

    async def end(self, user: UserRef, chat: str) -> bool:
        """Give a chat its own session again. Returns whether it was moved."""
        if chat not in self._sessions:
            return False
        await self._store.write((DROP_MOVED, (chat,)), audit_op(str(user), "unmove", chat))
        self._set(chat, chat)
        return True

    async def forgotten(self, user: UserRef) -> list[str]:
        """Return the chats that a user moved."""
        m = t.moved_chat.c
        query = select(m.chat).where(and_(m.channel == user.channel, m.user_id == user.user))
        return await self._store.read(lambda c: list(c.execute(query).scalars()))

    def forget(self, chats: list[str]) -> list[Op]:
        """Give chats their own sessions again. Returns the writes that make it durable."""
        for chat in chats:
            self._set(chat, chat)
        return [(DROP_MOVED, (chat,)) for chat in chats]

    def _move(self, user: UserRef, chat: str, session: str) -> Op:
        """Return the write that lets a chat continue a session, or its own one again."""
        if chat == session:
            return DROP_MOVED, (chat,)
        return PUT_MOVED, (chat, session, user.channel, user.user, self._clock())

    def _set(self, chat: str, session: str) -> None:
        if session == chat:
            self._sessions.pop(chat, None)
        else:
            self._sessions[chat] = session
            self._shared.add(session)
