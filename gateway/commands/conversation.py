"""The slash commands of the conversation itself: /title, /fork, /undo, /redo, /share and /unshare.

A conversation has the first line of its first message as its title, until the hidden agent ``title`` or a
user gives it another one. After /fork a chat continues in the fork, as after /move.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

from gateway.access import THE_OWNER, Access
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.contract.plugin import CommandContext, MentionCompletion, Plugin, SlashCommand
from gateway.conversations import LONGEST_TITLE, Change, Command, ConversationServices, one_line
from gateway.session import Session, Sessions, running

_BACK = MentionCompletion("back", "", "returns to the conversation that this one was forked from")


class ConversationCommands(Plugin):
    """The commands of a conversation. ``parts`` returns those of the running gateway."""

    name = "conversation"

    def __init__(
        self, sessions: Sessions, access: Access, services: Callable[[], ConversationServices]
    ) -> None:
        self._sessions = sessions
        self._access = access
        self._services = services

    def commands(self) -> Sequence[SlashCommand]:
        """Return /title, /fork, /undo, /redo, /share and /unshare."""
        return (
            SlashCommand("title", "Show or set the title of this conversation: /title TEXT", self._title),
            SlashCommand(
                "fork",
                "Continue in a copy of this conversation, from here or from the message you reply to",
                self._fork,
                choices=lambda _partial: [_BACK],
            ),
            SlashCommand("undo", "Hide the last message and its answer, for you and the model", self._undo),
            SlashCommand("redo", "Restore what was undone last, until there is a new message", self._redo),
            SlashCommand("share", "Create a public read-only page of this conversation", self._share),
            SlashCommand("unshare", "Revoke the public pages of this conversation", self._unshare),
        )

    async def _title(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        title = one_line(rest)
        if not title:
            now = session.row.title
            return (f"The title is “{now}”." if now else "There is no title yet.") + " `/title TEXT` sets it."
        if len(title) > LONGEST_TITLE:
            return f"The title is unchanged: it may have {LONGEST_TITLE} characters, not {len(title)}."
        await self._services().titles.rename(session, title)
        return f"The title is now “{title}”."

    async def _fork(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        if rest not in ("", "back"):
            return "Type `/fork`, also as a reply to a message, or `/fork back` to return."
        if ctx.inbound.address.group and ctx.role != "admin":
            return "Only admins can fork the conversation of a group."
        if rest:
            return await self._return(session, ctx)
        message, forks = None, self._services().forks
        if ctx.inbound.in_reply_to is not None:
            message = await forks.find_message(session.id, ctx.channel, ctx.inbound.in_reply_to)
        user = self._access.policy.user_of(ctx.channel, ctx.inbound)
        try:
            if user == THE_OWNER:
                fork = await forks.fork(session.id, ctx.sender.id)
                return f"Forked: the copy is the conversation `{fork.id}`, in the list of conversations."
            row, ops = await forks.prepare(session, ctx.sender.id, message, ctx.inbound.address)
            await self._access.moved_chats.assign(user, ctx.inbound.session, row.id, *ops)
        except InvalidStateError:
            return "There is nothing to fork yet."
        where = "" if message is None else " that ends at the message you replied to"
        return (
            f"This chat continues in a copy of the conversation{where}. `/fork back` returns to the original."
        )

    async def _return(self, session: Session, ctx: CommandContext) -> str:
        parent, chat = session.row.parent, ctx.inbound.session
        user = self._access.policy.user_of(ctx.channel, ctx.inbound)
        if parent is None:
            return "This conversation is not a fork."
        if user == THE_OWNER:
            return f"The original is the conversation `{parent}`."
        try:
            await self._sessions.find(parent)
        except NotFoundError:
            return "The original conversation was deleted."
        await self._access.moved_chats.assign(user, chat, parent)
        return "This chat continues in the original conversation."

    async def _undo(self, _rest: str, ctx: CommandContext) -> str:
        return await self._change(
            ctx, "undo", "Undone. `/redo` shows it again, until you write a new message."
        )

    async def _redo(self, _rest: str, ctx: CommandContext) -> str:
        return await self._change(ctx, "redo", "Redone. The model sees it again.")

    async def _change(self, ctx: CommandContext, kind: Literal["undo", "redo"], done: str) -> str:
        if ctx.inbound.address.group and ctx.role != "admin":
            return f"Only admins can {kind} in a group."
        session, turn, undo = self._sessions.get_loaded(ctx.session), running.get(), self._services().undo
        if turn is None:
            raise InvalidStateError(f"/{kind} is a command of a chat")
        change: Callable[[Session, Command], Awaitable[Change]] = undo.undo if kind == "undo" else undo.redo
        try:
            # A message that is answered again after a crash has the same id.
            result = await change(session, Command(turn.entry.id, turn.entry.seq))
        except InvalidStateError as refusal:
            return f"Cannot {kind}: {refusal}."
        if result.remains:
            done = f"{done} This chat cannot delete messages, so the answer stays in view."
        # A name may contain line ends and backticks.
        names = [(" ".join(path.replace("`", "'").split()), reason) for path, reason in result.kept]
        kept = "".join(f"\n- `{name}`: {reason}" for name, reason in names)
        return f"{done}\n\nThese files stay as they are:\n{kept}" if kept else done

    async def _share(self, _rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group and ctx.role != "admin":
            return "Only admins can share the conversation of a group."
        session, user = self._sessions.get_loaded(ctx.session), self._user_of(ctx)
        try:
            made = await self._services().shares.create(session, user)
        except InvalidStateError as refusal:
            return f"Not shared: {refusal}."
        until = datetime.fromtimestamp(made.share.expires_at / 1000, UTC).date()
        return f"Everyone with this link can read the conversation so far, until {until}: {made.url}"

    async def _unshare(self, _rest: str, ctx: CommandContext) -> str:
        if ctx.inbound.address.group and ctx.role != "admin":
            return "Only admins can revoke the pages of a group's conversation."
        shares = self._services().shares
        found = await shares.list(ctx.session)
        for share in found:
            await shares.revoke(share.id, self._user_of(ctx))
        return f"Revoked: {len(found)}." if found else "This conversation is not shared."

    def _user_of(self, ctx: CommandContext) -> str:
        return str(self._access.policy.user_of(ctx.channel, ctx.inbound))
