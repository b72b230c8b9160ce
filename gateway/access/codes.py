"""One-time codes: eight characters that a person reads from one screen and types on another."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, select

from gateway.access.people import Who
from gateway.attempts import Attempts
from gateway.errors import NotFoundError, TooManyRequestsError
from gateway.messages import new_id, now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

ALPHABET = "34679CDFGHJKMNPQRTVWXY"
"""No two that look alike (0 and O, 1 and I and L, 2 and Z, 5 and S, 8 and B), and no vowels: no words."""
LENGTH = 8

HOUR_MS = 3_600_000
_MOST_OPEN = 1_000
_MOST_WRONG = 5
_WRONG_SECONDS = 600

CodeKind = Literal["pair", "link", "move"]

ADD_CODE = Write(
    "insert",
    63,
    t.one_time_code,
    "id kind code channel user_id name session created_at expires_at used_at",
)
USE_CODE = Write("update", 64, t.one_time_code, "id used_at")
DROP_CODE = Write("delete", 65, t.one_time_code, "id")


class Code(Struct, frozen=True, kw_only=True):
    """A code and whose it is. Times are milliseconds; ``used_at`` is 0 while it may be used.

    ``session`` is what a code of the kind ``move`` carries on.
    """

    id: str
    kind: CodeKind
    code: str
    channel: str
    user_id: str
    name: str = ""
    session: str = ""
    created_at: int
    expires_at: int
    used_at: int = 0

    @property
    def who(self) -> Who:
        """Whom it was given to."""
        return Who(self.channel, self.user_id)

    def use(self) -> Op:
        """The write that makes it worthless, to be committed with what it was good for."""
        return USE_CODE, (self.id, now_ms())


class Codes:
    """Gives codes out and recognises them.

    Whoever turns a code into something holds ``lock`` from ``find`` to the commit, so that it works once.
    """

    def __init__(self, store: Store, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self._wrong = Attempts(_MOST_WRONG, _WRONG_SECONDS)
        self.lock = asyncio.Lock()

    async def give(
        self, kind: CodeKind, who: Who, *, valid_ms: int, most: int, name: str = "", session: str = ""
    ) -> Code | None:
        """The code that is open already, or a new one.

        None when ``most`` were given to them within the hour, or too many are open on their channel.
        """
        async with self.lock:
            now = self._clock()
            theirs = await self._read(_of(who), t.one_time_code.c.kind == kind)
            for code in theirs:
                if not code.used_at and code.expires_at > now and code.session == session:
                    return code
            if sum(code.created_at > now - HOUR_MS for code in theirs) >= most:
                return None
            others = await self.open(kind)
            if sum(code.channel == who.channel for code in others) >= _MOST_OPEN:
                return None
            code = Code(
                id=new_id(),
                kind=kind,
                code=_fresh({code.code for code in others}),
                channel=who.channel,
                user_id=who.user,
                name=name,
                session=session,
                created_at=now,
                expires_at=now + valid_ms,
            )
            await self._store.write((ADD_CODE, msgspec.structs.astuple(code)), *await self._outdated())
            return code

    async def open(self, kind: CodeKind) -> list[Code]:
        """The codes of a kind that may still be used, the latest first."""
        c = t.one_time_code.c
        return await self._read(c.kind == kind, c.used_at == 0, c.expires_at > self._clock())

    async def find(self, kind: CodeKind, given: str, by: Who, among: Callable[[Code], bool]) -> Code:
        """The open code that somebody typed, if it is one of those ``among`` which it may be.

        Raises NotFoundError for any other, and TooManyRequestsError after five of those in ten minutes.
        """
        if self._wrong.used_up(str(by)):
            raise TooManyRequestsError("too many wrong codes; try again in ten minutes")
        typed = tidied(given).encode(errors="surrogatepass")
        # All are compared, whichever fits, so that the time it takes tells nothing.
        fitting = [code for code in await self.open(kind) if hmac.compare_digest(code.code.encode(), typed)]
        found = next((code for code in fitting if among(code)), None)
        if found is None:
            self._wrong.count(str(by))
            raise NotFoundError("no such code is open: it may be mistyped, used already, or too old")
        self._wrong.forget(str(by))
        return found

    async def revoked(self, who: Who) -> list[Op]:
        """The writes that make all codes of somebody worthless."""
        now = self._clock()
        theirs = await self._read(_of(who), t.one_time_code.c.used_at == 0)
        return [(USE_CODE, (code.id, now)) for code in theirs]

    async def _outdated(self) -> list[Op]:
        """The writes that remove codes which count for nothing any more."""
        c = t.one_time_code.c
        old = await self._read(c.expires_at < self._clock() - HOUR_MS, c.created_at < self._clock() - HOUR_MS)
        return [(DROP_CODE, (code.id,)) for code in old]

    async def _read(self, *where: ColumnElement[bool]) -> list[Code]:
        query = select(t.one_time_code).where(*where).order_by(t.one_time_code.c.created_at.desc())

        def read(connection: Connection) -> list[Code]:
            return [Code(**row) for row in connection.execute(query).mappings()]

        return await self._store.read(read)


def tidied(given: str) -> str:
    """A code as it was meant: without spaces and hyphens, in capitals."""
    return "".join(given.replace("-", "").split()).upper()


def _fresh(taken: set[str]) -> str:
    while True:
        code = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
        if code not in taken:
            return code


def _of(who: Who) -> ColumnElement[bool]:
    c = t.one_time_code.c
    return and_(c.channel == who.channel, c.user_id == who.user)
