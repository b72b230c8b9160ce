"""Account links: users of different channels that belong to one person."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import and_, select

from gateway.access.codes import Code, Codes
from gateway.access.people import UserRef
from gateway.contract.errors import InvalidStateError
from gateway.contract.messages import new_id, now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write, audit_op

VALID_MS = 600_000
"""Ten minutes: the same person reads and types the code."""
MOST_CODES = 10

PUT_IDENTITY = Write("upsert", 66, t.identity, "channel user_id id person at", key="channel user_id")
DROP_IDENTITY = Write("delete", 67, t.identity, "id")


class AccountLinks:
    """Links between accounts. A link gives no rights: each channel has its own members."""

    def __init__(self, store: Store, codes: Codes, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._codes = codes
        self._clock = clock

    async def begin(self, user: UserRef) -> Code | None:
        """Issue a code to type on another channel; None after too many in an hour."""
        return await self._codes.give("link", user, valid_ms=VALID_MS, most=MOST_CODES)

    async def finish(self, given: str, by: UserRef) -> UserRef:
        """Link the user that typed a code with the user that got it. Returns the latter.

        Raises NotFoundError, TooManyRequestsError, or InvalidStateError if the same user typed it.
        """
        async with self._codes.lock:
            code = await self._codes.find("link", given, by, lambda _code: True)
            if code.user == by:
                raise InvalidStateError("this code is for your account on another channel; type it there")
            everyone = {code.user, by} | await self.same(code.user) | await self.same(by)
            person, now = new_id(), self._clock()
            rows: list[Op] = [
                (PUT_IDENTITY, (user.channel, user.user, new_id(), person, now)) for user in everyone
            ]
            await self._store.write(*rows, code.use(), audit_op(str(by), "link", str(code.user)))
            return code.user

    async def end(self, user: UserRef) -> bool:
        """Remove a user's link. Returns whether there was one."""
        ops = await self.forgotten(user)
        if ops:
            await self._store.write(*ops, audit_op(str(user), "unlink", str(user)))
        return bool(ops)

    async def same(self, user: UserRef) -> set[UserRef]:
        """Return the other users that belong to the same person."""
        i = t.identity.c
        person = select(i.person).where(and_(i.channel == user.channel, i.user_id == user.user))
        query = select(i.channel, i.user_id).where(i.person.in_(person))
        found = await self._store.read(lambda c: {UserRef(*row) for row in c.execute(query)})
        return found - {user}

    async def forgotten(self, user: UserRef) -> list[Op]:
        """Return the writes that delete a user's link."""
        i = t.identity.c
        query = select(i.id).where(and_(i.channel == user.channel, i.user_id == user.user))
        ids = await self._store.read(lambda c: list(c.execute(query).scalars()))
        return [(DROP_IDENTITY, (row_id,)) for row_id in ids]
