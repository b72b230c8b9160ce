"""The Discord channel: one bot. Its connection, what it hears and what it says, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from channels.discord.api import Api, Later, Refused
from channels.discord.commands import print_of, register, registrations
from channels.discord.cursor import COMMANDS, Kept
from channels.discord.history import History
from channels.discord.inflow import Inflow
from channels.discord.interactions import Interactions
from channels.discord.keeper import Keeper
from channels.discord.link import UNREACHABLE, FatalClosure
from channels.discord.options import Options
from channels.discord.parse import View
from channels.discord.placing import Places
from channels.discord.prompts import Prompts
from channels.discord.reader import Reader
from channels.discord.render import Page, Style, pages
from channels.discord.rooms import Rooms
from gateway import (
    Address,
    ApprovalRequest,
    Cursor,
    Health,
    Host,
    Message,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    Receive,
    SettingsError,
    Streaming,
)

log = structlog.get_logger("trunkline.discord")

_SHORTEST, _LONGEST = 0.25, 60.0
_EVERY = 1.2
"""Seconds between two showings of an answer: Discord takes five edits in five seconds."""


class DiscordChannel:
    """A bot. ``run`` listens; everything else may be called before and after."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        token = options.token.get_secret_value()
        if not token.strip():
            raise SettingsError(f"channels.{channel_id}.token: is missing; it is on the bot's page")
        if token != token.strip() or not token.isascii() or not token.isprintable():
            raise SettingsError(f"channels.{channel_id}.token: is no token; it must not hold blanks")
        self.id = channel_id
        self._host = host
        self._options = options
        self._style = Style(options.pages, options.tools)
        self._api = Api(options.api_base_url, options.token.get_secret_value, options.pace)
        self._places = Places(self._api, personal=options.session_strategy == "chat_user", pace=options.pace)
        self._prompts = Prompts(self._api, self._places, host)
        self._rooms = Rooms(self._ask_room)
        self._keeper: Keeper | None = None
        self._why = "logging in"

    async def run(self, receive: Receive) -> None:
        """Listen until cancelled. Raises SettingsError when Discord does not want the bot as it is."""
        try:
            async with AsyncExitStack() as stack:
                await self._log_in(stack)
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                await self._listen(receive, tasks)
        except* (Refused, FatalClosure) as group:
            raise SettingsError(f"channels.{self.id}: {group.exceptions[0]}") from None
        except* UNREACHABLE as group:
            raise PlacementDeferred(f"Discord cannot be reached: {group.exceptions[0]!r}") from None
        finally:
            self._keeper = None

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place a message."""
        return await self._places.send(outbound)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Make a message show its page."""
        await self._places.edit(placed, outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Take a message away."""
        await self._places.delete(placed)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Look for a message that may have been placed."""
        return await self._places.find(outbound)

    def watermark(self, address: Address) -> str | None:
        """The newest message of a room that was seen."""
        return self._places.newest(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """An answer as messages."""
        return pages(message, self._style, final=final)

    def streaming(self, address: Address) -> Streaming | None:
        """Answers are edited while they are made."""
        return Streaming("edit", _EVERY) if self._options.streaming else None

    async def typing(self, address: Address) -> None:
        """Show that an answer is being made."""
        await self._places.typing(address)

    async def ask_approval(self, request: ApprovalRequest) -> None:
        """Ask with buttons."""
        await self._prompts.ask(request)

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show what became of it."""
        await self._prompts.decided(request, outcome)

    def health(self) -> Health:
        """Whether something is heard: the gateway answers every heartbeat."""
        why = self._why if self._keeper is None else self._keeper.trouble()
        return Health(ok=not why, detail=why)

    async def _log_in(self, stack: AsyncExitStack) -> None:
        """Open the API, however long it is away. Raises Refused when it does not want this bot."""
        pause = _SHORTEST
        while True:
            try:
                await stack.enter_async_context(self._api.opened())
            except UNREACHABLE as error:
                self._why = f"logging in: {error or type(error).__name__}"
                log.info("logging in to Discord again", reason=self._why)
                await asyncio.sleep(error.seconds if isinstance(error, Later) else pause)
                pause = min(_LONGEST, pause * 2)
            else:
                return

    async def _listen(self, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        account = str(self._api.me["id"])
        kept = Kept(await self._host.cursors(self.id), account)
        commands = self._host.commands()
        view = View(self.id, account, self._options, frozenset(command.name for command in commands))
        reader = Reader(self._api, self._rooms, self._places, view)
        inflow = Inflow(receive, self._host, reader, self._rooms, History(self._api), kept)
        interactions = Interactions(self._api, self._rooms, self._places, self._prompts, view)
        self._keeper = Keeper(
            self._api, self._options, inflow, reader, kept, receive, interactions.take, tasks
        )
        await inflow.begin()
        tasks.create_task(inflow.run())
        tasks.create_task(self._register(kept, receive))
        await self._keeper.run()

    async def _register(self, kept: Kept, receive: Receive) -> None:
        """Tell Discord of the commands, when it was not told of just these."""
        registered = registrations(self._host.commands())
        while True:
            try:
                application = await self._places.application()
                told = print_of(application, registered)
                if told == kept.commands:
                    return
                if await register(self._api, application, registered):
                    await receive(cursor=Cursor(kept.account, told, COMMANDS))
                return
            except Refused as refused:
                log.error("the commands could not be registered", reason=str(refused))
                return
            except Exception as error:  # noqa: BLE001 - the bot talks without commands, too
                log.warning("the commands are not registered yet", reason=str(error) or type(error).__name__)
                await asyncio.sleep(60)

    async def _ask_room(self, key: str) -> Any:
        """A room by its id. Raises LookupError when the bot cannot have it."""
        try:
            return await self._api.insist("GET", "/channels/{channel_id}", channel_id=key)
        except Refused as refused:
            raise LookupError(str(refused)) from refused
