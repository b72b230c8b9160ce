"""The slash commands of access: /pair, /link, /move and /console."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.access.codes import Code
from gateway.access.people import THE_OWNER, UserRef
from gateway.access.policy import Access
from gateway.contract.errors import InvalidStateError, NotFoundError, OverloadedError
from gateway.contract.plugin import (
    CommandContext,
    MentionCompletion,
    MentionProvider,
    Plugin,
    SlashCommand,
)

_CONSOLE_MS = 5 * 60_000
_MOST_CONSOLE_CODES = 10
_TOO_MANY = "Too many codes requested; try again in an hour."
_REFUSALS = (NotFoundError, InvalidStateError, OverloadedError)


class AccessCommands(Plugin):
    """Commands that approve users, link accounts and continue a conversation in another chat."""

    name = "access"

    def __init__(self, access: Access) -> None:
        self._access = access

    def commands(self) -> Sequence[SlashCommand]:
        """Return /pair, /link, /move and /console."""
        return (
            SlashCommand("pair", "Approve a user: /pair CODE", self._pair, admin=True),
            SlashCommand(
                "link",
                "Link your account on another channel: /link here, then /link CODE there",
                self._link,
                choices=_off("ends the link of your account"),
            ),
            SlashCommand(
                "move",
                "Continue the conversation in another chat: /move here, then /move CODE there",
                self._move,
                choices=_off("gives this chat its own conversation again"),
            ),
            SlashCommand("console", "Get a code to sign in to the console", self._console, admin=True),
        )

    async def _pair(self, rest: str, ctx: CommandContext) -> str:
        if not rest:
            return "Type `/pair CODE` with the pairing code of the user to approve."
        try:
            member = await self._access.pairing.approve(rest, self._user_of(ctx), ctx.role)
        except _REFUSALS as refusal:
            return _sentence(refusal)
        return (
            f"Approved: `{member.user_id}`{f' ({member.name})' if member.name else ''} on {member.channel}."
        )

    async def _link(self, rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group:
            return "Link accounts in a private chat: other users can read this one."
        user, links = self._user_of(ctx), self._access.links
        if rest == "off":
            return (
                "Your account is no longer linked."
                if await links.end(user)
                else "Your account is not linked."
            )
        if not rest:
            return _code_reply(await links.begin(user), "link", "on the other channel")
        try:
            other = await links.finish(rest, user)
        except _REFUSALS as refusal:
            return _sentence(refusal)
        return f"Linked with `{other}`."

    async def _move(self, rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group and ctx.role != "admin":
            return "Only admins can move the conversation of a group."
        user, moved, chat = self._user_of(ctx), self._access.moved_chats, ctx.inbound.session
        if rest == "off":
            was_moved = await moved.end(user, chat)
            return "This chat has its own conversation again." if was_moved else "This chat was not moved."
        if not rest:
            return _code_reply(
                await moved.begin(user, ctx.session), "move", "in the chat where you want to continue"
            )
        if user == THE_OWNER:
            return "Not needed here: you can open every conversation directly."
        try:
            await moved.finish(rest, user, chat, any_owner=ctx.role == "admin")
        except NotFoundError as refusal:
            return f"{_sentence(refusal)} To use a code of another account, link both accounts first: /link"
        except _REFUSALS as refusal:
            return _sentence(refusal)
        return "The conversation continues here."

    async def _console(self, _rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group:
            return "Ask in a private chat: other users can read this one."
        user = self._user_of(ctx)
        if user == THE_OWNER:
            # The chat page may have a cookie that is 30 days old, which opens nothing of the console.
            return "Sign in with your token: open `/console` at the address of this gateway."
        code = await self._access.codes.give("console", user, valid_ms=_CONSOLE_MS, most=_MOST_CONSOLE_CODES)
        if code is None:
            return _TOO_MANY
        return (
            f"Your code for the console is **{code.code}**. It works once, within five minutes.\n\n"
            "Open `/console` at the address of this gateway and type it there. Do not share it."
        )

    def _user_of(self, ctx: CommandContext) -> UserRef:
        return self._access.policy.user_of(ctx.channel, ctx.inbound)


def _off(effect: str) -> MentionProvider:
    """Return the choices of a command whose only fixed argument is ``off``."""
    return lambda _partial: [MentionCompletion("off", "", effect)]


def _code_reply(code: Code | None, command: str, where: str) -> str:
    if code is None:
        return _TOO_MANY
    return f"Type `/{command} {code.code}` {where}, within ten minutes. Keep the code private."


def _sentence(refusal: Exception) -> str:
    text = str(refusal)
    return f"{text[:1].upper()}{text[1:]}."
