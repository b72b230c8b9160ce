"""Discord channel of one bot: creates its parts and connects them to the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from channels.discord.api import UNREACHABLE, Api, RateLimited, Refused
from channels.discord.approvals import Approvals
from channels.discord.commands import Interactions, register
from channels.discord.connection import Connection, FatalClosure
from channels.discord.cursor import StoredState
from channels.discord.delivery import Delivery
from channels.discord.inflow import Chats, EventReader, History, Inflow
from channels.discord.options import Options
from channels.discord.parse import BotProfile
from channels.discord.render import Page, Style, pages
from gateway import Message, SettingsError
from gateway.channel import (
    Address,
    ApprovalRequest,
    Backoff,
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
        self._approvals = Approvals(self._api, self._delivery, host)
        self._chats = Chats(self._fetch_chat)
        self._connection: Connection | None = None
        self._reason = "logging in"

    async def run(self, receive: Receive) -> None:
        """Receive events until cancelled.

        Raises SettingsError if Discord rejects the bot or its settings, and PlacementDeferred if Discord
        stays unreachable for a call that an event needs.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._log_in(stack)
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                await self._receive_events(receive, tasks)
        except* (Refused, FatalClosure) as group:
            raise SettingsError(f"channels.{self.id}: {group.exceptions[0]}") from None
        except* UNREACHABLE as group:
            raise PlacementDeferred(f"Discord is unreachable: {group.exceptions[0]!r}") from None
        finally:
            self._connection = None

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

    def watermark(self, address: Address) -> str | None:
        """Return the greatest message id that was seen in a chat."""
        return self._delivery.newest(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """Render an answer as messages."""
        return pages(message, self._style, final=final)

    def streaming(self, address: Address) -> Streaming | None:
        """Return how a running answer is shown: by edits, or not at all."""
        return Streaming("edit", _EDIT_SECONDS) if self._options.streaming else None

    async def typing(self, address: Address) -> None:
        """Show the typing indicator."""
        await self._delivery.typing(address)

    async def ask_approval(self, request: ApprovalRequest) -> Placed:
        """Send an approval question with buttons."""
        return await self._approvals.ask(request)

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Replace the buttons of an approval question by its outcome."""
        await self._approvals.show_outcome(request, outcome)

    def health(self) -> Health:
        """Return the state of the login, the connection, the histories and the bot token."""
        reason = self._reason if self._connection is None else self._connection.problem or self._api.problem
        return Health(ok=not reason, detail=reason)

    async def _log_in(self, stack: AsyncExitStack) -> None:
        """Open the API, with retries. Raises Refused if Discord rejects the bot."""
        failures = 0
        while True:
            try:
                await stack.enter_async_context(self._api.opened())
            except UNREACHABLE as error:
                self._reason = f"logging in: {error or type(error).__name__}"
                log.info("the login at Discord failed; retrying", reason=self._reason)
                failures += 1
                await asyncio.sleep(
                    error.seconds if isinstance(error, RateLimited) else _BACKOFF.pause(failures)
                )
            else:
                return

    async def _receive_events(self, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        account = str(self._api.me["id"])
        state = StoredState(await self._host.cursors(self.id), account)
        commands = self._host.commands()
        bot = BotProfile(self.id, account, self._options, frozenset(command.name for command in commands))
        reader = EventReader(self._api, self._chats, self._delivery, bot)
        inflow = Inflow(receive, reader, self._chats, History(self._api), state)
        interactions = Interactions(self._api, self._chats, self._delivery, self._approvals, bot)
        self._connection = Connection(
            self._api, self._options, inflow, reader, state, receive, interactions.process, tasks
        )
        await inflow.store_start()
        tasks.create_task(inflow.run())
        tasks.create_task(register(self._api, self._delivery, commands, state, receive))
        await self._connection.run()

    async def _fetch_chat(self, key: str) -> Any:
        """Fetch Discord's description of a chat. Raises LookupError if the bot has no access to it."""
        try:
            return await self._api.call_with_retries("GET", "/channels/{channel_id}", channel_id=key)
        except Refused as refused:
            raise LookupError(str(refused)) from refused
