"""Moving: a conversation goes on in another chat.

The other chat then continues the first one's session: what is said in either is one conversation, and an
answer goes to the chat it was asked from.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import and_, select

from gateway.access.codes import Code, Codes
from gateway.access.linking import MOST_CODES, VALID_MS, Linking
from gateway.access.people import Who
from gateway.audit import audit_op
from gateway.messages import now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

PUT_MOVED = Write("upsert", 68, t.moved_chat, "chat session channel user_id at", key="chat")
DROP_MOVED = Write("delete", 69, t.moved_chat, "chat", key="chat")


class Moving:
    """Which chats continue which sessions, in memory: every message asks."""

    def __init__(
        self, store: Store, codes: Codes, linking: Linking, clock: Callable[[], int] = now_ms
    ) -> None:
        self._store = store
        self._codes = codes
        self._linking = linking
        self._clock = clock
        self._sessions: dict[str, str] = {}

    async def load(self) -> None:
        """Read them. To be called once, before the first message."""
        query = select(t.moved_chat.c.chat, t.moved_chat.c.session)
        self._sessions = await self._store.read(lambda c: {row.chat: row.session for row in c.execute(query)})

    def session_of(self, chat: str) -> str:
        """The session of a chat, which is its own unless it was moved."""
        return self._sessions.get(chat, chat)

    async def begin(self, who: Who, session: str) -> Code | None:
        """A code that carries a session on in another chat; None after too many in an hour."""
        return await self._codes.give("move", who, valid_ms=VALID_MS, most=MOST_CODES, session=session)

    async def finish(self, given: str, by: Who, chat: str, *, anybodys: bool = False) -> str:
        """Let a chat continue the session that the code is for. Returns the session.

        It has to be the same person's code, or ``anybodys`` when an admin asks. Raises NotFoundError for any
        other, or TooManyRequestsError.
        """
        same = {by} | await self._linking.same(by)
        async with self._codes.lock:
            code = await self._codes.find("move", given, by, lambda c: anybodys or c.who in same)
            moved: Op = (PUT_MOVED, (chat, code.session, by.channel, by.user, self._clock()))
            if chat == code.session:
                moved = (DROP_MOVED, (chat,))
            audit = audit_op(str(by), "move", chat, f"session {code.session} of {code.who}")
            await self._store.write(moved, code.use(), audit)
            self._set(chat, code.session)
        return code.session

    async def end(self, who: Who, chat: str) -> bool:
        """Give a chat its own session again. Returns whether it had another."""
        if chat not in self._sessions:
            return False
        await self._store.write((DROP_MOVED, (chat,)), audit_op(str(who), "unmove", chat))
        self._set(chat, chat)
        return True

    async def forgotten(self, who: Who) -> list[str]:
        """The chats that somebody moved."""
        m = t.moved_chat.c
        query = select(m.chat).where(and_(m.channel == who.channel, m.user_id == who.user))
        return await self._store.read(lambda c: list(c.execute(query).scalars()))

    def forget(self, chats: list[str]) -> list[Op]:
        """Give chats their own sessions again. Returns the writes that make it durable."""
        for chat in chats:
            self._set(chat, chat)
        return [(DROP_MOVED, (chat,)) for chat in chats]

    def _set(self, chat: str, session: str) -> None:
        if session == chat:
            self._sessions.pop(chat, None)
        else:
            self._sessions[chat] = session
