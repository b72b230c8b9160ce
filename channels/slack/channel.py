"""The Slack channel: one installation of an app in one workspace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog
from aiohttp import web

from channels.slack.api import Api, RefusedError
from channels.slack.catching_up import START
from channels.slack.events import Events
from channels.slack.options import Options
from channels.slack.parse import Rules, Stopped
from channels.slack.placing import Placing
from channels.slack.presence import Presence
from channels.slack.prompts import Prompts
from channels.slack.render import Page, pages
from channels.slack.sockets import Sockets
from channels.slack.web import Webhook
from gateway import (
    Address,
    ApprovalRequest,
    Cursor,
    Health,
    Host,
    InboundMessage,
    Message,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementUncertain,
    Receipt,
    Receive,
    Rejected,
    Streaming,
)

log = structlog.get_logger("trunkline.slack")

_PROBE_SECONDS, _SWEEP_SECONDS = 30.0, 5.0
_STREAM_EVERY, _EDIT_EVERY = 1.0, 2.0


class SlackChannel:
    """Reads by Socket Mode or HTTP, writes by the Web API."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        options.check(channel_id)
        self.id = channel_id
        self._host = host
        self._options = options
        self._api = Api(options.bot_token.get_secret_value().strip(), options.api_base_url)
        self._placing = Placing(self._api, streams=options.streaming)
        self._presence = Presence(self._api, options.thinking)
        self._prompts = Prompts(self._api, host)
        self._events = Events(
            self._api,
            host,
            largest_file=options.file_bytes,
            on_press=self._prompts.pressed,
            on_stop=self._stopped,
        )
        self._sockets: Sockets | None = None
        self._problem = "starting"

    async def run(self, receive: Receive) -> None:
        """Listen until cancelled: what was missed first, then what comes."""
        self._problem = "starting"
        rules = await self._sign_in()
        await self._restore(rules, receive)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._events.connected(rules, self._listening(receive), tasks)
                self._problem = ""
                tasks.create_task(self._probe())
                tasks.create_task(self._sweep())
                if self._options.mode == "http":
                    self._events.catching.begin(tasks)
                    await asyncio.get_running_loop().create_future()
                self._sockets = Sockets(
                    self._options.app_token.get_secret_value().strip(),
                    self._api,
                    self._events.handle,
                    lambda: self._events.catching.begin(tasks),
                )
                await self._sockets.run()
        finally:
            self._sockets = None
            self._events.ended()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place one page."""
        placed = await self._placing.send(outbound)
        self._events.catching.saw(outbound.address.chat, placed.platform_id)
        await self._after(outbound)
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Let a page show its content."""
        await self._placing.edit(placed, outbound)
        await self._after(outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Take a message away."""
        await self._placing.delete(placed, address)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Look for a message by its nonce."""
        return await self._placing.find(outbound)

    def watermark(self, address: Address) -> str | None:
        """The newest message known in a room."""
        return self._events.catching.latest.get(address.chat)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """The answer as Slack's messages."""
        return pages(message, final=final, most=self._options.pages)

    def streaming(self, address: Address) -> Streaming | None:
        """Streams in threads, edits elsewhere; a command's answer comes whole."""
        if not self._options.streaming or (address.reply_to is not None and "/" in address.reply_to):
            return None
        return Streaming("edit", _STREAM_EVERY if self._placing.streams(address) else _EDIT_EVERY)

    async def typing(self, address: Address) -> None:
        """Show that an answer is being made."""
        await self._presence.thinking(address)

    async def ask_approval(self, request: ApprovalRequest) -> None:
        """Ask with buttons."""
        await self._prompts.ask(request)

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show a decision."""
        await self._prompts.decided(request, outcome)

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Where Slack sends to, if it does."""
        if self._options.mode != "http":
            return ()
        webhook = Webhook(self._options.signing_secret.get_secret_value().strip(), self._events.handle)
        return [web.post(self._options.route(self.id), webhook.serve)]

    def health(self) -> Health:
        """Whether Slack answers, and a socket is open where there has to be one."""
        problem = self._problem or (self._sockets.problem if self._sockets is not None else "")
        return Health(ok=not problem, detail=problem)

    async def _sign_in(self) -> Rules:
        """Who we are. Raises RefusedError when the token does not do."""
        while True:
            try:
                told = await self._api.call("auth.test")
                break
            except (PlacementDeferred, PlacementUncertain) as error:
                self._problem = str(error)
                log.info("Slack does not answer yet", channel=self.id, reason=str(error))
                await asyncio.sleep(getattr(error, "seconds", None) or 1.0)
        self._placing.team, self._placing.bot_user = str(told.get("team_id")), str(told.get("user_id"))
        return Rules(
            channel=self.id,
            team=self._placing.team,
            bot_user=self._placing.bot_user,
            strategy=self._options.session_strategy,
            groups=self._options.groups,
            edits=self._options.edits == "rerun",
            prefix=self._options.command_prefix,
            follows=self._events.catching.follows,
        )

    async def _restore(self, rules: Rules, receive: Receive) -> None:
        """Take up how far rooms were read; the first time, note when it begins."""
        now = f"{time.time():.6f}"
        known = self._events.catching.restore(await self._host.cursors(self.id), rules.team, now)
        if not known:
            await receive(cursor=Cursor(rules.team, now, START))

    def _listening(self, receive: Receive) -> Receive:
        """``receive``, which also remembers for whom an answer will be."""

        async def listening(
            *messages: InboundMessage, cursor: Cursor | None = None, rejected: Sequence[Rejected] = ()
        ) -> Sequence[Receipt]:
            for message in messages:
                address = message.address
                if address.reply_to is not None:
                    self._placing.heard(address.chat, address.reply_to, message.sender.id)
            return await receive(*messages, cursor=cursor, rejected=rejected)

        return listening

    async def _after(self, outbound: OutboundMessage) -> None:
        if outbound.final and outbound.part + 1 == outbound.parts:
            await self._presence.done(outbound.address)

    async def _stopped(self, stopped: Stopped) -> None:
        await self._presence.idle(stopped.chat, stopped.thread)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self._presence.sweep()

    async def _probe(self) -> None:
        """Ask now and then whether the Web API and the token still do."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            try:
                await self._api.call("auth.test", urgent=False)
                self._problem = ""
            except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
                self._problem = str(error)
                log.warning("Slack does not answer as it should", channel=self.id, reason=str(error))
