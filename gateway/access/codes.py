"""One-time codes: eight characters that a user reads on one screen and types on another.

The database holds only their hashes, so that a reader of the database or a backup cannot use an open code.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, or_, select

from gateway.access.people import UserRef
from gateway.access.tokens import Attempts
from gateway.contract.errors import NotFoundError, TooManyRequestsError
from gateway.contract.messages import new_id, now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

ALPHABET = "34679CDFGHJKMNPQRTVWXY"
"""Without look-alikes (0/O, 1/I/L, 2/Z, 5/S, 8/B), and without vowels, which could form words."""
LENGTH = 8

HOUR_MS = 3_600_000
_MOST_OPEN = 1_000
_MOST_WRONG = 5
_WRONG_SECONDS = 600

CodeKind = Literal["pair", "link", "move", "console"]

_FIELDS = {"code": "digest"}
"""Fields of ``Code`` with another column name."""

ADD_CODE = Write(
    "insert",
    63,
    t.one_time_code,
    "id kind code channel user_id name session created_at expires_at used_at",
)
USE_CODE = Write("update", 64, t.one_time_code, "id used_at")
DROP_CODE = Write("delete", 65, t.one_time_code, "id")


class Code(Struct, frozen=True, kw_only=True):
    """A code and the user it was issued to. Times are milliseconds; ``used_at`` is 0 while it is unused.

    ``code`` is empty if another process issued the code; ``digest`` is its hash in the database.
    ``session`` is the session that a ``move`` code continues.
    """

    id: str
    kind: CodeKind
    code: str
    digest: str
    channel: str
    user_id: str
    name: str = ""
    session: str = ""
    created_at: int
    expires_at: int
    used_at: int = 0

    @property
    def user(self) -> UserRef:
        """The user that the code was issued to."""
        return UserRef(self.channel, self.user_id)

    def is_open(self, now: int) -> bool:
        """Return whether the code can be used at a time (ms).

        A code of the future counts no longer than one of the past: the clock was set back since.
        """
        return not self.used_at and abs(now - self.created_at) < self.expires_at - self.created_at

    def use(self) -> Op:
        """Return the write that marks the code as used; commit it with the action that it allows."""
        return USE_CODE, (self.id, now_ms())


class Codes:
    """Issues codes and finds typed ones.

    A caller that redeems a code holds ``lock`` from ``find`` to the commit, so that the code works once.
    """

    def __init__(self, store: Store, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self._wrong = Attempts(_MOST_WRONG, _WRONG_SECONDS)
        self._given: dict[str, Code] = {}
        self.lock = asyncio.Lock()

    async def give(
        self, kind: CodeKind, user: UserRef, *, valid_ms: int, most: int, name: str = "", session: str = ""
    ) -> Code | None:
        """Return the user's open code, or a new one.

        A new code replaces an open one issued before the last start, because only its hash is known. None if
        the user got ``most`` codes within an hour, or if too many are open on the channel.
        """
        async with self.lock:
            now = self._clock()
            self._given = {key: code for key, code in self._given.items() if code.expires_at > now}
            theirs = await self._read(_of(user), t.one_time_code.c.kind == kind)
            opened = [code for code in theirs if code.is_open(now) and code.session == session]
            for code in opened:
                if code.code:
                    return code
            if sum(abs(now - code.created_at) < HOUR_MS for code in theirs) >= most:
                return None
            others = await self.open(kind)
            if sum(code.channel == user.channel for code in others) >= _MOST_OPEN:
                return None
            fresh, digest = await asyncio.to_thread(_fresh, {code.digest for code in others})
            code = Code(
                id=new_id(),
                kind=kind,
                code=fresh,
                digest=digest,
                channel=user.channel,
                user_id=user.user,
                name=name,
                session=session,
                created_at=now,
                expires_at=now + valid_ms,
            )
            row = tuple(getattr(code, _FIELDS.get(name, name)) for name in ADD_CODE.columns)
            replaced = [each.use() for each in opened]
            await self._store.write((ADD_CODE, row), *replaced, *await self._outdated())
            self._given[code.id] = code
            return code

    async def open(self, kind: CodeKind) -> list[Code]:
        """Return the unused, unexpired codes of a kind, the latest first."""
        c, now = t.one_time_code.c, self._clock()
        found = await self._read(c.kind == kind, c.used_at == 0, c.expires_at > now)
        return [code for code in found if code.is_open(now)]

    async def find(self, kind: CodeKind, given: str, by: UserRef, among: Callable[[Code], bool]) -> Code:
        """Return the open code that a user typed, if ``among`` accepts it.

        Raises NotFoundError for any other, and TooManyRequestsError after five wrong codes in ten minutes.
        """
        if self._wrong.used_up(str(by)):
            raise TooManyRequestsError("too many wrong codes; try again in ten minutes")
        typed = await asyncio.to_thread(_digest, tidied(given))
        # Compare with every code, also after a match, so that the duration reveals nothing.
        fitting = [code for code in await self.open(kind) if hmac.compare_digest(code.digest, typed)]
        found = next((code for code in fitting if among(code)), None)
        if found is None:
            self._wrong.count(str(by))
            raise NotFoundError("this code is not valid: it may be mistyped, used already or expired")
        self._wrong.forget(str(by))
        return found

    async def revoked(self, user: UserRef) -> list[Op]:
        """Return the writes that invalidate all codes of a user."""
        now = self._clock()
        theirs = await self._read(_of(user), t.one_time_code.c.used_at == 0)
        return [(USE_CODE, (code.id, now)) for code in theirs]

    async def _outdated(self) -> list[Op]:
        """Return the writes that delete codes which expired more than an hour ago, or are of the future."""
        c, now = t.one_time_code.c, self._clock()
        # Otherwise a code that was issued by a clock that was ahead would count again at that time.
        old = await self._read(or_(c.expires_at < now - HOUR_MS, c.created_at > now + HOUR_MS))
        return [(DROP_CODE, (code.id,)) for code in old]

    async def _read(self, *where: ColumnElement[bool]) -> list[Code]:
        query = select(t.one_time_code).where(*where).order_by(t.one_time_code.c.created_at.desc())

        def read(connection: Connection) -> list[Code]:
            return [self._known(dict(row)) for row in connection.execute(query).mappings()]

        return await self._store.read(read)

    def _known(self, row: dict[str, Any]) -> Code:
        given = self._given.get(row["id"])
        digest = row.pop("code")
        return Code(code=given.code if given else "", digest=digest, **row)


def tidied(given: str) -> str:
    """Return a typed code without spaces and hyphens, in capitals."""
    return "".join(given.replace("-", "").split()).upper()


def _fresh(taken: set[str]) -> tuple[str, str]:
    """Return a new code and its digest; the digest is not in ``taken``."""
    while True:
        code = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
        digest = _digest(code)
        if digest not in taken:
            return code, digest


def _digest(code: str) -> str:
    """Hash a code in about 20 ms, too slow to try all 5e10 codes in the hour that a code is valid.

    A common salt allows comparing a typed code with every open one by a single hash.
    """
    text = code.encode(errors="surrogatepass")
    return hashlib.scrypt(text, salt=b"trunkline one-time code", n=2**13, r=8, p=1, dklen=32).hex()


def _of(user: UserRef) -> ColumnElement[bool]:
    c = t.one_time_code.c
    return and_(c.channel == user.channel, c.user_id == user.user)
