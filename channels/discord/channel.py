"""Discord channel of one bot: connects the gateway connection, the inflow and the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from channels.discord.api import Api, Later, Refused
from channels.discord.approvals import Prompts
from channels.discord.commands import Interactions, print_of, register, registrations
from channels.discord.connection import UNREACHABLE, FatalClosure, Keeper
from channels.discord.cursor import COMMANDS, Kept
from channels.discord.delivery import Places
from channels.discord.inflow import History, Inflow, Reader, Rooms
from channels.discord.options import Options
from channels.discord.parse import View
from channels.discord.render import Page, Style, pages
from gateway import Message, SettingsError
from gateway.channel import (
    Address,
    ApprovalRequest,
    Backoff,
    Cursor,
    Health,
    Host,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    Receive,
    Streaming,
)

log = structlog.get_logger("trunkline.discord")

_BACKOFF = Backoff(0.25, 60)
_EVERY = 1.2
"""Seconds between two edits of a growing answer: Discord allows five edits in five seconds."""


class DiscordChannel:
    """Channel of one bot. All methods except ``run`` may be called before and after ``run``."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
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
        """Receive events until cancelled. Raises SettingsError if Discord rejects the bot or its settings."""
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
        """Send a message."""
        return await self._places.send(outbound)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Replace the content of a message with a page."""
        await self._places.edit(placed, outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Delete a message."""
        await self._places.delete(placed)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Search for a message after an uncertain send."""
        return await self._places.find(outbound)

    def watermark(self, address: Address) -> str | None:
        """Return the newest message id seen in a chat."""
        return self._places.newest(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """Render an answer as messages."""
        return pages(message, self._style, final=final)

    def streaming(self, address: Address) -> Streaming | None:
        """Return the preview mode: answers are edited while they are generated."""
        return Streaming("edit", _EVERY) if self._options.streaming else None

    async def typing(self, address: Address) -> None:
        """Show the typing indicator."""
        await self._places.typing(address)

    async def ask_approval(self, request: ApprovalRequest) -> Placed:
        """Ask with buttons."""
        return await self._prompts.ask(request)

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show the decision."""
        await self._prompts.decided(request, outcome)

    def health(self) -> Health:
        """Return the health of the connection: the gateway acknowledges every heartbeat."""
        why = self._why if self._keeper is None else self._keeper.trouble() or self._api.problem
        return Health(ok=not why, detail=why)

    async def _log_in(self, stack: AsyncExitStack) -> None:
        """Open the API, retrying while it cannot be reached. Raises Refused if Discord rejects the bot."""
        failures = 0
        while True:
            try:
                await stack.enter_async_context(self._api.opened())
            except UNREACHABLE as error:
                self._why = f"logging in: {error or type(error).__name__}"
                log.info("logging in to Discord again", reason=self._why)
                failures += 1
                await asyncio.sleep(error.seconds if isinstance(error, Later) else _BACKOFF.pause(failures))
            else:
                return

    async def _listen(self, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        account = str(self._api.me["id"])
        kept = Kept(await self._host.cursors(self.id), account)
        commands = self._host.commands()
        view = View(self.id, account, self._options, frozenset(command.name for command in commands))
        reader = Reader(self._api, self._rooms, self._places, view)
        inflow = Inflow(receive, reader, self._rooms, History(self._api), kept)
        interactions = Interactions(self._api, self._rooms, self._places, self._prompts, view)
        self._keeper = Keeper(
            self._api, self._options, inflow, reader, kept, receive, interactions.take, tasks
        )
        await inflow.begin()
        tasks.create_task(inflow.run())
        tasks.create_task(self._register(kept, receive))
        await self._keeper.run()

    async def _register(self, kept: Kept, receive: Receive) -> None:
        """Register the commands unless the same ones were registered before."""
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
        """Fetch a channel by its id. Raises LookupError if the bot has no access to it."""
        try:
            return await self._api.insist("GET", "/channels/{channel_id}", channel_id=key)
        except Refused as refused:
            raise LookupError(str(refused)) from refused
