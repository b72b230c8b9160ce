"""The Slack channel: one app, in one workspace or several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from aiohttp import web
from pydantic import SecretStr

from channels.slack.api import RefusedError
from channels.slack.connection import Deliveries, Sockets, Webhook
from channels.slack.inflow import Inflow
from channels.slack.options import Options
from channels.slack.render import Page, pages
from channels.slack.workspace import Installations, OAuth, Workspace
from gateway import Message
from gateway.channel import (
    Address,
    ApprovalRequest,
    Health,
    Host,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    Receive,
    Streaming,
)

log = structlog.get_logger("trunkline.slack")

_STREAM_EVERY, _EDIT_EVERY = 1.0, 2.0
_FIRST = 0.4
"""The share of all edits up to which an answer is shown while it is made; the rest is for its end."""
_SOON = 0.5
_REFUSED_PAUSE = 300.0
"""Seconds after which a workspace that refused its token is asked again."""


class SlackChannel:
    """Reads by Socket Mode or HTTP, writes by the Web API."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._options = options
        self._host = host
        self._installations = Installations(options.installations) if options.client_id else None
        given = [_plain(token) for token in (options.bot_token, *options.workspaces)]
        kept = [] if self._installations is None else self._installations.tokens
        tokens = dict.fromkeys(token for token in (*given, *kept) if token)
        self._workspaces = [self._workspace(token, home=token == given[0]) for token in tokens]
        self._deliveries = Deliveries(self._inflow)
        self._sockets: Sockets | None = None
        self._missing = len(self._workspaces)
        self._welcome: Callable[[Workspace], None] | None = None

    async def run(self, receive: Receive) -> None:
        """Listen until cancelled: what was missed first, then what comes."""
        self._missing = len(self._workspaces)
        all_there = asyncio.Event()

        def signed_in() -> None:
            self._missing -= 1
            if self._missing <= 0:
                all_there.set()

        try:
            async with asyncio.TaskGroup() as tasks:
                for workspace in self._workspaces:
                    tasks.create_task(self._keep(workspace, receive, tasks, signed_in))
                self._welcome = lambda one: self._begin(one, receive, tasks)
                if self._workspaces:
                    await all_there.wait()
                if self._options.mode == "http":
                    self._catch_up(tasks)
                    await asyncio.get_running_loop().create_future()
                self._sockets = Sockets(
                    _plain(self._options.app_token),
                    self._options.api_base_url,
                    self._deliveries.handle,
                    lambda: self._catch_up(tasks),
                )
                await self._sockets.run()
        finally:
            self._sockets = self._welcome = None

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place one page."""
        return await self._of(outbound.address).send(outbound)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Let a page show its content."""
        await self._of(outbound.address).edit(placed, outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Take a message away."""
        await self._of(address).placing.delete(placed, address)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Look for a message by its nonce."""
        return await self._of(outbound.address).placing.find(outbound)

    def watermark(self, address: Address) -> str | None:
        """The newest message known in a room."""
        workspace = self._known(address.account)
        return None if workspace is None else workspace.watermark(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """The answer as Slack's messages."""
        return pages(message, final=final, most=self._options.pages, tools=self._options.tools)

    def streaming(self, address: Address) -> Streaming | None:
        """Streams in threads, edits elsewhere; a command's answer comes whole, as all do when busy."""
        if not self._options.streaming or (address.reply_to is not None and "/" in address.reply_to):
            return None
        workspace = self._known(address.account)
        if workspace is None:
            return None
        if workspace.placing.streams(address):
            return Streaming("edit", _STREAM_EVERY)
        return Streaming("edit", _EDIT_EVERY) if workspace.placing.may_change(_FIRST) else None

    async def typing(self, address: Address) -> None:
        """Show that an answer is being made."""
        await self._of(address).presence.thinking(address)

    async def ask_approval(self, request: ApprovalRequest) -> Placed:
        """Ask with buttons."""
        return await self._of(request.address).prompts.ask(request)

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None:
        """Show a decision."""
        await self._of(request.address).prompts.decided(request, outcome)

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Where Slack sends to, and where the app is installed, if they are wanted."""
        options, routes = self._options, list[web.AbstractRouteDef]()
        if options.mode == "http":
            webhook = Webhook(_plain(options.signing_secret), self._deliveries.handle)
            routes.append(web.post(options.route(self.id), webhook.serve))
        if options.client_id:
            oauth = OAuth(
                options.client_id,
                _plain(options.client_secret),
                options.api_base_url,
                options.redirect_url,
                self._installed,
            )
            begin, end = options.installing(self.id)
            routes += [web.get(begin, oauth.begin), web.get(end, oauth.end)]
        return routes

    def health(self) -> Health:
        """Whether Slack answers, and a socket is open where there has to be one."""
        problems = [f"{one.team} {one.problem}".strip() for one in self._workspaces if one.problem]
        problems += [one.inflow.catching.problem for one in self._workspaces if one.inflow.catching.problem]
        if self._sockets is not None and self._sockets.problem:
            problems.append(self._sockets.problem)
        elif self._missing > 0 and not problems:
            problems.append("starting")
        return Health(ok=not problems, detail="; ".join(problems))

    async def _keep(
        self, workspace: Workspace, receive: Receive, tasks: asyncio.TaskGroup, signed_in: Callable[[], None]
    ) -> None:
        """Keep one workspace going. Where it is the only one, its refusal is the channel's failure."""
        while True:
            try:
                await workspace.run(receive, tasks, signed_in)
            except RefusedError as refused:
                if self._installations is None and len(self._workspaces) == 1:
                    raise
                workspace.problem = str(refused)
                log.error("a workspace refuses its token", channel=self.id, reason=str(refused))
                signed_in()
            if workspace not in self._workspaces:
                return
            await asyncio.sleep(_REFUSED_PAUSE)

    def _workspace(self, token: str, *, home: bool) -> Workspace:
        return Workspace(self._host, self.id, self._options, token, self._left, home=home)

    def _begin(self, workspace: Workspace, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        """Take in a workspace while the channel runs."""
        self._workspaces.append(workspace)
        tasks.create_task(self._keep(workspace, receive, tasks, lambda: None))

    async def _installed(self, team: str, token: str) -> None:
        """Keep a token, and use it from now on in place of the workspace's former one."""
        if self._installations is not None:
            await self._installations.keep(team, token)
        former = self._known(team)
        if former is not None:
            self._dismiss(former)
        if self._welcome is not None:
            self._welcome(self._workspace(token, home=former is not None and former.home))

    async def _left(self, workspace: Workspace) -> None:
        """The app was removed from a workspace."""
        log.error("the app was removed from a workspace", channel=self.id, team=workspace.team)
        if self._installations is None:
            workspace.problem = "the app was removed"
            return
        await self._installations.forget(workspace.team)
        self._dismiss(workspace)

    def _dismiss(self, workspace: Workspace) -> None:
        if workspace in self._workspaces:
            self._workspaces.remove(workspace)
        workspace.stop()

    def _catch_up(self, tasks: asyncio.TaskGroup) -> None:
        for workspace in self._workspaces:
            if workspace.team:
                workspace.inflow.catching.begin(tasks)

    def _inflow(self, team: str) -> Inflow | None:
        """Whose a delivery is; one that names no workspace is the first one's to look at."""
        workspace = self._known(team) if team else next(iter(self._workspaces), None)
        return None if workspace is None else workspace.inflow

    def _known(self, team: str) -> Workspace | None:
        return next((one for one in self._workspaces if one.team == team), None)

    def _of(self, address: Address) -> Workspace:
        """The workspace of an address. Raises PlacementDeferred until all have said who they are."""
        workspace = self._known(address.account)
        if workspace is not None:
            return workspace
        if any(not one.team for one in self._workspaces):
            raise PlacementDeferred("Slack has not told yet which workspace this is", _SOON)
        raise PlacementRefused("the app has no token of that workspace")


def _plain(secret: SecretStr) -> str:
    return secret.get_secret_value().strip()
