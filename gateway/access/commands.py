"""The slash commands of access: /pair, /link and /move."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.access.access import Access
from gateway.access.codes import Code
from gateway.access.people import THE_OWNER, Who
from gateway.errors import InvalidStateError, NotFoundError, OverloadedError
from gateway.plugin import CommandContext, Plugin, SlashCommand

_ENOUGH = "You were given enough codes; try again in an hour."
_REFUSALS = (NotFoundError, InvalidStateError, OverloadedError)


class AccessCommands(Plugin):
    """Letting people in, linking one's accounts, carrying a conversation to another chat."""

    name = "access"

    def __init__(self, access: Access) -> None:
        self._access = access

    def commands(self) -> Sequence[SlashCommand]:
        """The three."""
        return (
            SlashCommand("pair", "Let somebody in: /pair CODE", self._pair, admin=True),
            SlashCommand(
                "link", "Say on another channel that you are you: /link, then /link CODE", self._link
            ),
            SlashCommand("move", "Go on in another chat: /move here, then /move CODE there", self._move),
        )

    async def _pair(self, rest: str, ctx: CommandContext) -> str:
        if not rest:
            return "Whose code is it? Type `/pair CODE` with the code that I gave to the one you let in."
        try:
            member = await self._access.pairing.approve(rest, self._who(ctx), ctx.role)
        except _REFUSALS as refusal:
            return _told(refusal)
        return f"Let in: `{member.user_id}`{f' ({member.name})' if member.name else ''} on {member.channel}."

    async def _link(self, rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group:
            return "Others read this. Write to me alone to link your accounts."
        who, linking = self._who(ctx), self._access.linking
        if rest == "off":
            return "You are linked with nobody now." if await linking.end(who) else "You are not linked."
        if not rest:
            return _shown(await linking.begin(who), "link", "on the other channel")
        try:
            other = await linking.finish(rest, who)
        except _REFUSALS as refusal:
            return _told(refusal)
        return f"Linked: you are also `{other}`."

    async def _move(self, rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group and ctx.role != "admin":
            return "Only admins may move the conversation of a group."
        who, moving, chat = self._who(ctx), self._access.moving, ctx.inbound.session
        if rest == "off":
            moved = await moving.end(who, chat)
            return "This chat is a conversation of its own again." if moved else "This chat was not moved."
        if not rest:
            return _shown(await moving.begin(who, ctx.session), "move", "where you want to go on")
        if who == THE_OWNER:
            return "Not needed here: you can open any conversation itself."
        try:
            await moving.finish(rest, who, chat, anybodys=ctx.role == "admin")
        except NotFoundError as refusal:
            return f"{_told(refusal)} A code of another account works once both are linked: /link"
        except _REFUSALS as refusal:
            return _told(refusal)
        return "We go on here. I know what we said there."

    def _who(self, ctx: CommandContext) -> Who:
        return self._access.door.who(ctx.channel, ctx.inbound)


def _shown(code: Code | None, command: str, where: str) -> str:
    if code is None:
        return _ENOUGH
    return f"Type `/{command} {code.code}` {where}, within ten minutes. Show it to nobody."


def _told(refusal: Exception) -> str:
    text = str(refusal)
    return f"{text[:1].upper()}{text[1:]}."
