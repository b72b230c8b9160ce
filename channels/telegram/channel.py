"""The Telegram channel: one bot."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from channels.telegram.api import CallError, Client, RefusedError
from channels.telegram.approvals import Approvals
from channels.telegram.courier import Courier
from channels.telegram.files import Files
from channels.telegram.options import Options
from channels.telegram.pace import Pace
from channels.telegram.parse import Self, is_group
from channels.telegram.polling import POLL_SECONDS, poll
from channels.telegram.pulse import Pulse
from channels.telegram.receiving import Receiving, Signal
from channels.telegram.render import Page, pages_of
from channels.telegram.webhook import PROBE_SECONDS, Webhook
from channels.telegram.wire import CallbackQuery, StoppedGeneration
from gateway import (
    Address,
    ApprovalRequest,
    Health,
    Host,
    Message,
    NotFoundError,
    OutboundMessage,
    Placed,
    Receive,
    Streaming,
)

log = structlog.get_logger("trunkline.telegram")

_DRAFTS_EVERY, _EDITS_EVERY = 1.0, 4.0
_SILENCE = 2.5
"""Of how many polls or probes the answers may be missing."""
_MOST_DRAFTS, _MOST_MARKS = 1000, 10_000
_KEPT_EVERY = 5
"""A draft that does not grow is shown again each time typing was shown so often."""
_MOST_COMMANDS = 100
_MOST_DESCRIPTION = 256
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")


class TelegramChannel:
    """A bot: reads what is meant for it, and writes answers."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._host = host
        self._options = options
        token = options.token.get_secret_value()
        self._account = token.partition(":")[0]
        self._client = Client(token, options.api_base_url)
        self._courier = Courier(self._client, Pace(options.pace))
        self._approvals = Approvals(host, self._courier)
        self._webhook = _webhook(options)
        every = POLL_SECONDS if self._webhook is None else PROBE_SECONDS
        self._pulse = Pulse(channel_id, _SILENCE * every)
        self._drafts: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._previews: dict[Address, tuple[OutboundMessage, int]] = {}
        self._marked: set[tuple[str, str]] = set()

    async def run(self, receive: Receive) -> None:
        """Read until cancelled."""
        async with self._client.connected(), asyncio.TaskGroup() as tasks:
            me = await self._introduce()
            files = Files(self._client, self._options.file_bytes)

            def act(signal: Signal) -> None:
                tasks.create_task(self._act(signal))

            receiving = Receiving(receive, me, files, self._courier.note, act)
            await receiving.restore(await self._host.cursors(self.id))
            tasks.create_task(receiving.run())
            if self._webhook is None:
                await poll(self._client, receiving, self._pulse)
            else:
                self._webhook.receiving = receiving
                try:
                    await self._webhook.keep(self._client, self._pulse)
                finally:
                    self._webhook.receiving = None

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place one page."""
        self._previews.pop(outbound.address, None)
        placed = await self._courier.place(outbound)
        await self._unmark(outbound)
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Make a message show a page."""
        number, preview = int(placed.platform_id), not outbound.final
        await self._courier.change(outbound.address, number, outbound.page, preview=preview)
        await self._unmark(outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Remove a message."""
        await self._courier.delete(address, int(placed.platform_id))

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Look whether a page stands that may have been placed."""
        return await self._courier.find(outbound)

    def watermark(self, address: Address) -> str | None:
        """The number of the newest message known."""
        return self._courier.watermark(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """An answer as messages of Telegram."""
        return pages_of(message, final=final, most=self._options.pages, tools=self._options.tools)

    def streaming(self, address: Address) -> Streaming | None:
        """Private chats see drafts, groups see edits; these are few a minute."""
        if not self._options.streaming:
            return None
        return (
            Streaming("edit", _EDITS_EVERY) if is_group(address.chat) else Streaming("draft", _DRAFTS_EVERY)
        )

    async def draft(self, outbound: OutboundMessage) -> None:
        """Show what there is of an answer, with a button that stops it."""
        number = int(outbound.nonce[:7], 16) or 1
        self._drafts[outbound.address.chat, number] = outbound.message.session_id
        while len(self._drafts) > _MOST_DRAFTS:
            self._drafts.popitem(last=False)
        if len(self._previews) >= _MOST_DRAFTS:
            self._previews.clear()
        self._previews[outbound.address] = outbound, 0
        await self._courier.draft(outbound, number)

    async def typing(self, address: Address) -> None:
        """Show that the bot is at work: by its name, and on the message if so wished."""
        topic = {} if address.thread is None else {"message_thread_id": int(address.thread)}
        emoji, asked = self._options.thinking, (address.chat, address.reply_to or "")
        if emoji and asked not in self._marked:
            if len(self._marked) >= _MOST_MARKS:
                self._marked.clear()
            self._marked.add(asked)
            await self._react(address, [{"type": "emoji", "emoji": emoji}])
        await self._courier.sign(address, "sendChatAction", action="typing", **topic)
        await self._keep_draft(address)

    async def ask_approval(self, request: ApprovalRequest) -> None:
        """Ask in the room, with buttons."""
        await self._approvals.ask(request)

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show what was decided."""
        await self._approvals.decided(request, outcome)

    def routes(self) -> Sequence[Any]:
        """Where Telegram delivers, if it does."""
        return () if self._webhook is None else self._webhook.routes()

    def health(self) -> Health:
        """Whether Telegram answers."""
        return self._pulse.health()

    async def _introduce(self) -> Self:
        """Get to know each other: who the bot is there, and which commands it knows."""
        found = await self._insist("getMe")
        if self._webhook is None:
            await self._insist("deleteWebhook", drop_pending_updates=False)
        names = await self._tell_commands()
        options = self._options
        username = str(found.get("username") or "")
        log.info("connected", channel=self.id, bot=username)
        return Self(
            channel=self.id,
            id=int(self._account),
            username=username,
            groups=options.groups,
            strategy=options.session_strategy,
            edits=options.edits == "rerun",
            commands=names,
        )

    async def _insist(self, method: str, **arguments: Any) -> Any:
        """A call that has to succeed before the next one. Raises RefusedError where it is a wrong one."""
        while True:
            try:
                answer = await self._client.call(method, **arguments)
            except CallError as error:
                if isinstance(error, RefusedError) and error.code == 400:
                    raise
                await self._pulse.failed(error)
            else:
                self._pulse.answered()
                return answer

    async def _tell_commands(self) -> Mapping[str, str]:
        """Let the platform offer the commands. Returns what each is called there."""
        known = {command.name.lower().replace("-", "_"): command for command in self._host.commands()}
        offered = [
            {
                "command": name,
                "description": (command.description or command.name)[:_MOST_DESCRIPTION],
            }
            for name, command in known.items()
            if _COMMAND.fullmatch(name) and not command.admin
        ]
        try:
            await self._insist("setMyCommands", commands=offered[:_MOST_COMMANDS])
        except RefusedError as refused:
            log.warning("Telegram does not offer the commands", channel=self.id, reason=refused.reason)
        return {name: command.name for name, command in known.items()}

    async def _act(self, signal: Signal) -> None:
        try:
            if isinstance(signal, CallbackQuery):
                await self._approvals.pressed(signal)
            else:
                await self._stop(signal)
        except Exception:
            log.exception("a button could not be acted upon", channel=self.id)

    async def _stop(self, stopped: StoppedGeneration) -> None:
        """Somebody pressed Stop under a draft."""
        session = self._drafts.get((str(stopped.chat.id), stopped.draft_id))
        if session is not None:
            try:
                await self._host.abort(session)
            except NotFoundError:
                log.info("there is nothing to stop", session=session)

    async def _unmark(self, outbound: OutboundMessage) -> None:
        """The answer stands: its question needs no mark any more."""
        address = outbound.address
        if self._options.thinking and outbound.final and outbound.part == outbound.parts - 1:
            self._marked.discard((address.chat, address.reply_to or ""))
            await self._react(address, [])

    async def _keep_draft(self, address: Address) -> None:
        """Drafts go after half a minute: show one again while nothing comes to it, as in a long tool."""
        shown, typed = self._previews.get(address, (None, 0))
        if shown is None:
            return
        if typed + 1 < _KEPT_EVERY:
            self._previews[address] = shown, typed + 1
        else:
            await self.draft(shown)

    async def _react(self, address: Address, reaction: Sequence[Mapping[str, str]]) -> None:
        if address.reply_to is None:
            return
        try:
            await self._courier.sign(
                address, "setMessageReaction", message_id=int(address.reply_to), reaction=[*reaction]
            )
        except CallError as error:
            log.info("a message could not be marked", reason=str(error))


def _webhook(options: Options) -> Webhook | None:
    if options.mode == "polling" or options.webhook_url is None or options.webhook_secret is None:
        return None
    return Webhook(options.webhook_url, options.webhook_secret.get_secret_value())
