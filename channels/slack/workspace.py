"""One installation of the app: who it is there, what it reads, what it writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from channels.slack.api import Api, RefusedError
from channels.slack.catching_up import START
from channels.slack.inflow import Inflow
from channels.slack.options import Options
from channels.slack.parse import Rules, Stopped, user_of
from channels.slack.placing import Placing
from channels.slack.presence import Presence
from channels.slack.prompts import Prompts
from gateway.channel import (
    Address,
    Cursor,
    Host,
    InboundMessage,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementUncertain,
    Receipt,
    Receive,
    Rejected,
    Signal,
)

log = structlog.get_logger("trunkline.slack")

_PROBE_SECONDS, _SWEEP_SECONDS, _AGAIN_SECONDS = 30.0, 5.0, 2.0


class Workspace:
    """The app in one workspace. ``team`` is empty until Slack has told."""

    def __init__(
        self,
        host: Host,
        channel_id: str,
        options: Options,
        token: str,
        left: Callable[[Workspace], Awaitable[None]],
        *,
        home: bool,
    ) -> None:
        self.team = ""
        self.home = home
        """Whether it is the one that ``bot_token`` opens."""
        self.problem = "starting"
        """What does not work; empty while all does."""
        self.api = Api(token, options.api_base_url, options.pace, self._refused)
        self.placing = Placing(self.api, streams=options.streaming)
        self.presence = Presence(self.api, options.thinking)
        self.prompts = Prompts(self.api, host)
        self.inflow = Inflow(
            self.api,
            file_bytes=options.file_bytes,
            on_press=self.prompts.pressed,
            on_stop=self._stopped,
            on_leave=lambda: left(self),
            on_revoke=self._revoked,
        )
        self._over = asyncio.Event()
        self._host = host
        self._channel_id = channel_id
        self._options = options

    async def run(self, receive: Receive, tasks: asyncio.TaskGroup, signed_in: Callable[[], None]) -> None:
        """Keep it going until it is stopped. Raises RefusedError when the token does not do."""
        self.problem = "starting"
        rules = await self._sign_in()
        await self._restore(rules, receive)
        self.inflow.connected(rules, self._listening(receive), tasks)
        self.problem = ""
        signed_in()
        try:
            async with self.api.connected(), asyncio.TaskGroup() as own_tasks:
                running = [own_tasks.create_task(self._probe()), own_tasks.create_task(self._sweep())]
                await self._over.wait()
                for task in running:
                    task.cancel()
        finally:
            self.inflow.ended()

    def stop(self) -> None:
        """Let ``run`` end."""
        self._over.set()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place one page."""
        placed = await self.placing.send(outbound)
        self.inflow.catching.saw(outbound.address.chat, placed.platform_id)
        await self._after(outbound)
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Let a page show its content."""
        await self.placing.edit(placed, outbound)
        await self._after(outbound)

    def watermark(self, address: Address) -> str | None:
        """The newest message known in a room."""
        return self.inflow.catching.latest.get(address.chat)

    async def _sign_in(self) -> Rules:
        """Who we are."""
        while True:
            try:
                told = await self.api.call("auth.test")
                break
            except (PlacementDeferred, PlacementUncertain) as error:
                problem = f"{error}; look at the bot's token" if _is_of_token(error) else str(error)
                if problem != self.problem:
                    log.warning("Slack does not let the app in", channel=self._channel_id, reason=problem)
                self.problem = problem
                await asyncio.sleep(getattr(error, "seconds", None) or 1.0)
        self.team = self.placing.team = str(told.get("team_id"))
        self.placing.bot_user = str(told.get("user_id"))
        return Rules(
            channel=self._channel_id,
            team=self.team,
            bot_user=self.placing.bot_user,
            home=self.home,
            strategy=self._options.session_strategy,
            groups=self._options.groups,
            edits=self._options.edits == "rerun",
            prefix=self._options.command_prefix,
            follows=self.inflow.catching.follows,
        )

    async def _restore(self, rules: Rules, receive: Receive) -> None:
        """Take up how far rooms were read; the first time, note when it begins."""
        now = f"{time.time():.6f}"
        known = self.inflow.catching.restore(await self._host.cursors(self._channel_id), rules.team, now)
        if not known:
            await receive(cursor=Cursor(rules.team, now, START))

    def _listening(self, receive: Receive) -> Receive:
        """``receive``, which also remembers for whom an answer will be."""

        async def listening(
            *messages: InboundMessage,
            cursor: Cursor | None = None,
            rejected: Sequence[Rejected] = (),
            signals: Sequence[Signal] = (),
        ) -> Sequence[Receipt]:
            for message in messages:
                address = message.address
                if address.reply_to is not None:
                    self.placing.heard(address.chat, address.reply_to, user_of(message.sender.id))
            return await receive(*messages, cursor=cursor, rejected=rejected, signals=signals)

        return listening

    async def _after(self, outbound: OutboundMessage) -> None:
        if outbound.final and outbound.part + 1 == outbound.parts:
            await self.presence.done(outbound.address)

    async def _stopped(self, stopped: Stopped) -> None:
        await self.presence.idle(stopped.chat, stopped.thread)

    def _refused(self, reason: str) -> None:
        """Slack does not accept the token: say so at once, whatever call it was."""
        problem = f"Slack refuses the bot's token: {reason}"
        if self.problem != problem and self.team:
            log.error(problem, channel=self._channel_id, team=self.team)
            self.problem = problem

    async def _revoked(self) -> None:
        """Slack says that tokens were revoked; whether ours still does is asked."""
        self._refused("tokens_revoked")
        await self._ask()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.presence.sweep()

    async def _probe(self) -> None:
        """Ask now and then whether the Web API and the token still do."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            await self._ask()

    async def _ask(self) -> None:
        """Ask whether the Web API and the token still do, until Slack says so or not.

        One answer that asks to wait says nothing about that, so the next one is not left to the next probe.
        """
        while True:
            try:
                await self.api.call("auth.test", urgent=False)
            except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
                log.warning("Slack does not answer as it should", team=self.team, reason=str(error))
                if _is_of_token(error):
                    return
                self.problem = str(error)
                if isinstance(error, RefusedError):
                    return
                await asyncio.sleep(getattr(error, "seconds", None) or _AGAIN_SECONDS)
            else:
                self.problem = ""
                return


def _is_of_token(error: Exception) -> bool:
    return any(word in str(error) for word in ("_auth", "_authed", "token"))
