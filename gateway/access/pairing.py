"""Pairing: a stranger is given a code, and somebody who may says that it is all right.

The code is no secret of the stranger's: whoever approves it lets in the one it was given to, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from gateway.access.codes import HOUR_MS, Code, Codes
from gateway.access.people import Member, Members, Who
from gateway.attempts import Attempts
from gateway.audit import audit_op
from gateway.channel import Sender, SenderRole
from gateway.errors import ForbiddenError, NotFoundError
from gateway.messages import new_id, now_ms
from gateway.store import Op

log = structlog.get_logger("trunkline.access")

_VALID_MS = HOUR_MS
_MOST_CODES = 3
_MOST_ANSWERS = 5
_ANSWERS_SECONDS = 600
_NAME_LENGTH = 80


class Pairing:
    """Strangers, and how they become members."""

    def __init__(self, codes: Codes, members: Members, clock: Callable[[], int] = now_ms) -> None:
        self._codes = codes
        self._members = members
        self._clock = clock
        self._answered = Attempts(_MOST_ANSWERS, _ANSWERS_SECONDS)

    async def greet(self, channel: str, stranger: Sender) -> str | None:
        """What a stranger is told; None when they were told often enough.

        Five answers in ten minutes, and three codes in an hour; a code that is open is told again.
        """
        who = Who(channel, stranger.id)
        if self._answered.used_up(str(who)):
            return None
        self._answered.count(str(who))
        code = await self._codes.give(
            "pair", who, valid_ms=_VALID_MS, most=_MOST_CODES, name=stranger.name[:_NAME_LENGTH]
        )
        if code is None:
            log.warning("a stranger got no further code", channel=channel, user=stranger.id)
            return None
        log.info("a stranger was told how to be let in", channel=channel, user=stranger.id)
        return (
            f"I only talk with people I know. Your code is **{code.code}**, for one hour.\n\n"
            f"Show it to whoever runs this bot: `trunkline pair approve {code.code}` lets you in, "
            f"and so does an admin here with `/pair {code.code}`."
        )

    async def waiting(self) -> list[Code]:
        """The codes of strangers who wait, the latest first."""
        return await self._codes.open("pair")

    async def approve(self, given: str, by: Who, may: SenderRole, role: SenderRole = "user") -> Member:
        """Let in whoever has this code. ``by`` is who says so, and ``may`` their own role.

        An admin of a channel lets people in there, the owner everywhere; nobody gives a role beyond theirs.
        Raises ForbiddenError, NotFoundError for a code that is not open there, or TooManyRequestsError.
        """
        if may != "admin":
            raise ForbiddenError("only admins let others in")
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
                member, code.use(), audit_op(str(by), "pair.approve", str(code.who), f"role {role}")
            )
        self._answered.forget(str(code.who))
        return member

    def member(self, who: Who) -> Member:
        """A member. Raises NotFoundError."""
        member = self._members.get(who)
        if member is None:
            raise NotFoundError(
                f"nobody was let in as {who.user!r} on {who.channel!r}; "
                "those whom the settings allow are taken out there"
            )
        return member

    async def revoke(self, member: Member, by: Who, *ops: Op) -> None:
        """Let a member out again, durably together with other writes."""
        revoked = audit_op(str(by), "pair.revoke", str(member.who), f"role {member.role}")
        await self._members.remove(member, revoked, *await self._codes.revoked(member.who), *ops)
