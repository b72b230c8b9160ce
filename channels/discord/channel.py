"""Discord channel of one bot: creates its parts and connects them to the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import structlog
from msgspec import ValidationError

from channels.discord.api import UNREACHABLE, Api, RateLimited, Refused
from channels.discord.commands import Interactions, register
from channels.discord.connection import FATAL, Endpoint, FatalClosure, Shards
from channels.discord.delivery import Application, Delivery
from channels.discord.inflow import EventReader, StoredState
from channels.discord.options import Options
from channels.discord.parse import BotProfile, GuildId, Member, link_of, read, session_at
from channels.discord.questions import Questions
from channels.discord.render import Page, Style, pages
from channels.discord.rooms import Chats, Recall, Roles
from gateway import Answer, MentionCompletion, Message, SettingsError
from gateway.channel import (
    Address,
    Attention,
    Backoff,
    Earlier,
    Health,
    Host,
    InboundMessage,
    MessageLink,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    Question,
    Receive,
    Streaming,
)

log = structlog.get_logger("trunkline.discord")

_BACKOFF = Backoff(0.25, 60)
_MAX_GUILDS, _GUILDS_SECONDS = 10, 300.0
"""Servers on which the roles of the writer of a direct message are looked up, and the age of their list."""
_INTERACTION_WINDOW = 900.0
"""Seconds for which the token of an interaction is valid."""
_MESSAGE_CONTENT = 1 << 18 | 1 << 19
"""Flags of an application that has the Message Content Intent: verified, or in fewer than 100 servers."""
_EDIT_SECONDS = 1.2
"""Minimum interval between two edits of a growing answer: Discord allows five edits in five seconds."""


class DiscordChannel:
    """Channel of one bot. All methods except ``run`` may be called before and after ``run``."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._host = host
        self._options = options
        self._style = Style(options.pages, options.tools)
        self._api = Api(options.api_base_url, options.token.get_secret_value, options.pace)
        self._delivery = Delivery(
            self._api, by_user=options.session_strategy == "chat_user", pace=options.pace
        )
        self._questions = Questions(channel_id, self._api, self._delivery, host)
        self._chats = Chats(self._fetch_chat, self._fetch_guild)
        self._roles = Roles(self._fetch_roles)
        self._recall: Recall | None = None
        self._guilds: tuple[float, Sequence[str]] | None = None
        self._shards: Shards | None = None
        key = options.public_key
        self._endpoint = Endpoint(options.route(channel_id), key) if key else None
        self._reason = "logging in"
        self._unregistered = ""

    async def run(self, receive: Receive) -> None:
        """Receive events until cancelled.

        Raises SettingsError if Discord rejects the bot or its settings, and PlacementDeferred if Discord
        stays unreachable for a call that an event needs.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._log_in(stack)
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                await self._receive_events(receive, tasks, stack)
        except* (Refused, FatalClosure) as group:
            raise SettingsError(str(_first(group))) from None
        except* UNREACHABLE as group:
            raise PlacementDeferred(f"Discord is unreachable: {_first(group)!r}") from None
        finally:
            self._shards = None

    def routes(self) -> Sequence[Any]:
        """Return the route for interactions, if Discord posts them over HTTP."""
        return () if self._endpoint is None else self._endpoint.routes()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send a message."""
        return await self._delivery.send(outbound)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Replace the content of a message."""
        await self._delivery.edit(placed, outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Delete a message."""
        await self._delivery.delete(placed)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Search for a message whose ``send`` had an uncertain result."""
        return await self._delivery.find(outbound)

    def session_of(self, address: Address) -> str:
        """Return the session of a chat. Raises InvalidRequestError for ids that are not Discord's."""
        return session_at(address, self.id, self._options)

    def read_link(self, link: str) -> MessageLink | None:
        """Return the message that a link names; None for other texts."""
        return link_of(link)

    def watermark(self, address: Address) -> str | None:
        """Return the greatest message id that was seen in a chat."""
        return self._delivery.newest(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """Render an answer as messages."""
        return pages(message, self._style, final=final)

    def streaming(self, address: Address) -> Streaming | None:
        """Return how a running answer is shown: by edits, or not at all."""
        return Streaming("edit", _EDIT_SECONDS) if self._options.streaming else None

    def reply_window(self, address: Address) -> float | None:
        """Return the seconds for which the token of an interaction is valid; None for other messages."""
        return _INTERACTION_WINDOW if ":" in (address.reply_to or "") else None

    async def typing(self, address: Address) -> None:
        """Show the typing indicator."""
        await self._delivery.typing(address)

    async def show_title(self, address: Address, title: str) -> None:
        """Name the thread that the bot opened for a conversation after its title."""
        await self._delivery.name_thread(address, title)

    async def ask_question(self, question: Question) -> Placed:
        """Send a question with buttons."""
        return await self._questions.ask(question)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Replace the buttons of a question by its outcome."""
        await self._questions.closed(question, answer, shown)

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return the messages of the thread, or of the chain of replies, before a message.

        Raises Refused and UNREACHABLE, and LookupError before the first login.
        """
        if self._recall is None:
            raise LookupError("the bot has not logged in yet")
        return await self._recall.history(message, limit)

    def groups_of(self, user: str) -> Collection[str]:
        """Return the roles of a user that Discord confirmed in the last five minutes, like ``role:123``."""
        return {f"role:{role}" for role in self._roles.of(user)}

    async def refresh_groups(self, user: str, address: Address) -> None:
        """Fetch the roles of a user on the chat's server; for a direct chat, on the bot's first ten servers.

        Raises Refused, UNREACHABLE and LookupError.
        """
        if address.group:
            guild = await self._chats.guild_of(address.chat)
            guilds = [] if guild is None else [guild]
        else:
            guilds = await self._listed_guilds()
        await self._roles.refresh(user, guilds)

    def health(self) -> Health:
        """Return the state of the login, the connections, the histories, the bot token and the commands.

        The channel is healthy without some of its commands. The detail names each shard that is down.
        """
        shards = self._shards
        reason = self._reason if shards is None else shards.problem or self._api.problem or self._misdirected
        number = f"{shards.number} shards" if shards is not None and shards.number > 1 else ""
        detail = reason or "; ".join(filter(None, (number, self._unregistered)))
        return Health(ok=not reason, detail=detail)

    @property
    def _misdirected(self) -> str:
        """Return the mistake in the settings for which interactions do not arrive; empty if there is none."""
        known = self._delivery.registered
        return "" if known is None else known.misdirected(self._options.public_key)

    async def _log_in(self, stack: AsyncExitStack) -> None:
        """Open the API, with retries. Raises Refused if Discord rejects the bot."""
        failures = 0
        while True:
            try:
                await stack.enter_async_context(self._api.opened())
            except UNREACHABLE as error:
                reason = f"logging in: {str(error) or type(error).__name__}"
                if reason != self._reason:
                    log.warning("the login at Discord failed; retrying", channel=self.id, reason=reason)
                self._reason = reason
                failures += 1
                await asyncio.sleep(
                    error.seconds if isinstance(error, RateLimited) else _BACKOFF.pause(failures)
                )
            else:
                return

    async def _receive_events(
        self, receive: Receive, tasks: asyncio.TaskGroup, stack: AsyncExitStack
    ) -> None:
        account = str(self._api.me["id"])
        state = StoredState(await self._host.cursors(self.id), account)
        commands = self._host.commands()
        names = frozenset(command.name for command in commands)
        bot = BotProfile(self.id, account, self._options, names, self._chats.name, self._chats.own_roles)
        self._recall = Recall(self._api, bot)
        reader = EventReader(
            self._api, self._chats, self._roles, self._delivery, bot, self._attend, self._host.read_file
        )
        interactions = Interactions(
            self._api, self._chats, self._roles, reader, self._delivery, self._questions, bot, self._complete
        )
        if self._endpoint is not None:
            stack.enter_context(self._endpoint.opened(interactions.process, receive, reader, tasks))
        self._shards = Shards(
            self._api,
            self._options,
            reader,
            self._chats,
            receive,
            interactions.process,
            lambda: self._host.cursors(self.id),
            tasks,
        )
        tasks.create_task(
            register(self._api, self._delivery, commands, state, receive, self._report_commands)
        )
        await self._shards.run()

    async def _listed_guilds(self) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        if self._guilds is None or self._guilds[0] < now - _GUILDS_SECONDS:
            listed = await self._api.call("GET", "/users/@me/guilds", query={"limit": _MAX_GUILDS})
            self._guilds = (now, [found.id for found in read(listed, tuple[GuildId, ...])])
        return self._guilds[1]

    def _attend(self, message: InboundMessage) -> Attention:
        return self._host.attention(self.id, message)

    async def _complete(
        self, message: InboundMessage, command: str, typed: str
    ) -> Sequence[MentionCompletion]:
        return await self._host.choices(self.id, message, command, typed)

    def _report_commands(self, problem: str) -> None:
        self._unregistered = problem

    async def _fetch_guild(self, key: str) -> Any:
        """Fetch the channels and roles of a server. Raises LookupError if that fails."""
        try:
            channels = await self._api.call("GET", "/guilds/{guild_id}/channels", guild_id=key)
            roles = await self._api.call("GET", "/guilds/{guild_id}/roles", guild_id=key)
        except (Refused, *UNREACHABLE) as error:
            raise LookupError(str(error) or type(error).__name__) from error
        return {"id": key, "channels": channels, "roles": roles}

    async def _fetch_roles(self, guild: str, user: str) -> Collection[str]:
        """Fetch the roles of a user on a server; none for a user who is not a member."""
        path = "/guilds/{guild_id}/members/{user_id}"
        try:
            return read(await self._api.call("GET", path, guild_id=guild, user_id=user), Member).roles
        except Refused as refused:
            if refused.status != 404:
                raise
            return ()

    async def _fetch_chat(self, key: str) -> Any:
        """Fetch Discord's description of a chat. Raises LookupError if the bot has no access to it."""
        try:
            return await self._api.call_with_retries("GET", "/channels/{channel_id}", channel_id=key)
        except Refused as refused:
            raise LookupError(str(refused)) from refused


async def probe(options: Options) -> Sequence[Health]:
    """Ask Discord about the token, the intent and the address of interactions, for ``trunkline doctor``.

    Changes nothing there.
    """
    api = Api(options.api_base_url, options.token.get_secret_value)
    try:
        async with api.opened():
            application = read(await api.call("GET", "/applications/@me"), Application)
    except (Refused, ValidationError, *UNREACHABLE) as error:
        return [Health(ok=False, detail=str(error) or type(error).__name__)]
    problems = [FATAL[4014]] if not application.flags & _MESSAGE_CONTENT else []
    problems += filter(None, [application.misdirected(options.public_key)])
    about = f"signed in as {api.me.get('username')}"
    if not application.approximate_guild_count:
        about += f"; it is on no server yet: to add it to one, open {application.invitation}"
    return [Health(ok=False, detail=problem) for problem in problems] or [Health(ok=True, detail=about)]


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group, also of groups in it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
