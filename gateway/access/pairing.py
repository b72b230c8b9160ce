"""Pairing: an unauthorised user gets a code, and an admin approves it.

The code need not be secret: approving it admits the user that it was issued to, and no other user.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from gateway.access.codes import HOUR_MS, Code, Codes
from gateway.access.people import Member, Members, UserRef
from gateway.access.tokens import Attempts
from gateway.contract.channel import Sender, SenderRole
from gateway.contract.errors import ForbiddenError, NotFoundError
from gateway.contract.messages import new_id, now_ms
from gateway.store import Op
from gateway.store.writes import audit_op

log = structlog.get_logger("trunkline.access")

_VALID_MS = HOUR_MS
_MOST_CODES = 3
_MOST_ANSWERS = 5
_ANSWERS_SECONDS = 600
_NAME_LENGTH = 80


REFUSAL = "You are not authorised to use this bot."
"""Begin of the reply to an unauthorised user."""


class Pairing:
    """Turns unauthorised users into members, by code."""

    def __init__(self, codes: Codes, members: Members, clock: Callable[[], int] = now_ms) -> None:
        self._codes = codes
        self._members = members
        self._clock = clock
        self._answered = Attempts(_MOST_ANSWERS, _ANSWERS_SECONDS)

    async def greet(self, channel: str, stranger: Sender) -> str | None:
        """Return the reply with a pairing code, or None if the user reached a limit.

        The limits are five replies in ten minutes and three codes in an hour; an open code is repeated.
        """
        user = UserRef(channel, stranger.id)
        if self._answered.used_up(str(user)):
            return None
        self._answered.count(str(user))
        code = await self._codes.give(
            "pair", user, valid_ms=_VALID_MS, most=_MOST_CODES, name=stranger.name[:_NAME_LENGTH]
        )
        if code is None:
            log.warning(
                "an unauthorised user reached the limit of pairing codes", channel=channel, user=stranger.id
            )
            return None
        log.info("an unauthorised user got a pairing code", channel=channel, user=stranger.id)
        return (
            f"{REFUSAL} Your pairing code is **{code.code}**, valid for one "
            "hour.\n\n"
            f"Send it to the operator of this bot, who can run `trunkline pair approve {code.code}`, "
            f"or to an admin in this chat, who can type `/pair {code.code}`."
        )

    async def waiting(self) -> list[Code]:
        """Return the open pairing codes, the latest first."""
        return await self._codes.open("pair")

    async def approve(self, given: str, by: UserRef, may: SenderRole, role: SenderRole = "user") -> Member:
        """Make the user of this code a member. ``by`` is the approving user, ``may`` that user's role.

        An admin of a channel approves codes of that channel, the owner those of every channel. Raises
        ForbiddenError, NotFoundError for a code that is not open there, or TooManyRequestsError.
        """
        if may != "admin":
            raise ForbiddenError("only admins can approve users")
        async with self._codes.lock:
            code = await self._codes.find("pair", given, by, lambda c: by.channel in ("", c.channel))
            member = Member(
                id=new_id(),
                channel=code.channel,
                user_id=code.user_id,
                role=role,
                name=code.name,
                approved_by=str(by),
                at=self._clock(),
            )
            await self._members.add(
                member, code.use(), audit_op(str(by), "pair.approve", str(code.user), f"role {role}")
            )
        self._answered.forget(str(code.user))
        return member

    def member(self, user: UserRef) -> Member:
        """Return a member. Raises NotFoundError."""
        member = self._members.get(user)
        if member is None:
            raise NotFoundError(
                f"no paired user {user.user!r} on {user.channel!r}; "
                "users allowed in the settings are removed there"
            )
        return member

    async def revoke(self, member: Member, by: UserRef, *ops: Op) -> None:
        """Remove a member, in one transaction with other writes."""
        revoked = audit_op(str(by), "pair.revoke", str(member.user), f"role {member.role}")
        await self._members.remove(member, revoked, *await self._codes.revoked(member.user), *ops)
