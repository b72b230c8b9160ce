"""The Slack channel: one app, in one workspace or several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import structlog
from aiohttp import web
from pydantic import SecretStr

from channels.slack.api import REMOVED_ADVICE, RefusedError
from channels.slack.connection import Dispatcher, SocketMode, Webhook
from channels.slack.inflow import Inflow
from channels.slack.options import Options
from channels.slack.parse import link_of, session_at
from channels.slack.render import Page, pages
from channels.slack.workspace import Installations, OAuthPages, Workspace
from gateway import Answer, Message
from gateway.channel import (
    Address,
    Earlier,
    Health,
    Host,
    InboundMessage,
    MessageLink,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    Question,
    Receive,
    Streaming,
)

log = structlog.get_logger("trunkline.slack")

_STREAM_EVERY, _EDIT_EVERY = 1.0, 2.0
_RESPONSE_WINDOW = 1800.0
"""Seconds for which a ``response_url`` is valid."""
_LIVE_SHARE = 0.4
"""Share of the edit limit that may be used for answers in progress; the rest is for final edits."""
_NOT_SIGNED_IN_SECONDS = 0.5
_REFUSED_PAUSE = 300.0
"""Seconds before a rejected token is tried again."""


class SlackChannel:
    """Channel of one Slack app. Reads by Socket Mode or HTTP, and writes with the Web API."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._options = options
        self._host = host
        self._installations = Installations(options.installations) if options.client_id else None
        given = [_secret(token) for token in (options.bot_token, *options.workspaces)]
        kept = [] if self._installations is None else self._installations.tokens
        tokens = dict.fromkeys(token for token in (*given, *kept) if token)
        self._workspaces = [self._workspace(token, home=token == given[0]) for token in tokens]
        self._dispatcher = Dispatcher(self._inflow)
        self._webhook = Webhook(_secret(options.signing_secret), self._dispatcher.handle)
        self._socket_mode: SocketMode | None = None
        self._starting = len(self._workspaces)
        self._add_running: Callable[[Workspace], None] | None = None

    async def run(self, receive: Receive) -> None:
        """Sign in to each workspace, read missed messages, then receive deliveries until cancelled."""
        self._starting = len(self._workspaces)
        all_there = asyncio.Event()

        def signed_in() -> None:
            self._starting -= 1
            if self._starting <= 0:
                all_there.set()

        try:
            async with asyncio.TaskGroup() as tasks:
                for workspace in self._workspaces:
                    tasks.create_task(self._supervise(workspace, receive, tasks, signed_in))
                self._add_running = lambda one: self._begin(one, receive, tasks)
                if self._workspaces:
                    await all_there.wait()
                if self._options.mode == "http":
                    self._catch_up(tasks)
                    await asyncio.get_running_loop().create_future()
                self._socket_mode = SocketMode(
                    _secret(self._options.app_token),
                    self._options.api_base_url,
                    self._dispatcher.handle,
                    lambda: self._catch_up(tasks),
                )
                await self._socket_mode.run()
        finally:
            self._socket_mode = self._add_running = None

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Post one page."""
        return await self._workspace_of(outbound.address).send(outbound)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Change a posted page to its current content."""
        await self._workspace_of(outbound.address).edit(placed, outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Delete a message."""
        await self._workspace_of(address).delivery.delete(placed, address)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Find a posted page by its nonce; return None if it is not there."""
        return await self._workspace_of(outbound.address).delivery.find(outbound)

    def session_of(self, address: Address) -> str:
        """Return the session of a chat. Raises InvalidRequestError for ids that are not Slack's."""
        return session_at(address, self.id, self._options.session_strategy)

    def read_link(self, link: str) -> MessageLink | None:
        """Return the message that a link names; None for other texts."""
        return link_of(link)

    def watermark(self, address: Address) -> str | None:
        """Return the timestamp of the newest known message of a chat."""
        workspace = self._find(address.account)
        return None if workspace is None else workspace.watermark(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """Render an answer as Slack messages."""
        options = self._options
        return pages(message, final=final, most=options.pages, tools=options.tools, feedback=options.feedback)

    def reply_window(self, address: Address) -> float | None:
        """Return the seconds for which the ``response_url`` of a command is valid; None for messages."""
        return _RESPONSE_WINDOW if "/" in (address.reply_to or "") else None

    def streaming(self, address: Address) -> Streaming | None:
        """Return how often an answer is updated: streamed in threads, edited elsewhere.

        None for answers to slash commands, and when the edit limit is nearly used up: they are sent when
        complete.
        """
        if not self._options.streaming or self.reply_window(address) is not None:
            return None
        workspace = self._find(address.account)
        if workspace is None:
            return None
        if workspace.delivery.can_stream(address):
            return Streaming("edit", _STREAM_EVERY)
        return Streaming("edit", _EDIT_EVERY) if workspace.delivery.can_edit(_LIVE_SHARE) else None

    async def typing(self, address: Address) -> None:
        """Show the indicator that an answer is in progress."""
        await self._workspace_of(address).indicators.show(address)

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return the first message of a message's thread and the newest before it."""
        return await self._workspace_of(message.address).history(message, limit)

    def groups_of(self, user: str) -> Collection[str]:
        """Return the user groups of a sender that were confirmed in the last five minutes."""
        workspace = self._workspace_of_user(user)
        return () if workspace is None else workspace.groups_of(user)

    async def refresh_groups(self, user: str, address: Address) -> None:
        """Read the members of the user groups that the rules name, where they are not confirmed."""
        workspace = self._workspace_of_user(user)
        if workspace is not None and workspace.team == address.account:
            await workspace.groups.refresh()

    async def show_title(self, address: Address, title: str) -> None:
        """Name a thread in the app's chat with a user after its conversation."""
        workspace = self._find(address.account)
        if workspace is not None:
            await workspace.greeting.show_title(address, title)

    async def ask_question(self, question: Question) -> Placed:
        """Post a question with buttons."""
        return await self._workspace_of(question.address).questions.ask(question)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Show the outcome of a question."""
        await self._workspace_of(question.address).questions.closed(question, answer, shown)

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Return the HTTP routes for deliveries and for the installation that are configured."""
        options, routes = self._options, list[web.AbstractRouteDef]()
        if options.mode == "http":
            routes.append(web.post(options.route(self.id), self._webhook.serve))
        if options.client_id:
            oauth = OAuthPages(
                options.client_id,
                _secret(options.client_secret),
                options.api_base_url,
                options.redirect_url,
                self._installed,
            )
            begin, end = options.installing(self.id)
            routes += [web.get(begin, oauth.begin), web.get(end, oauth.end)]
        return routes

    def health(self) -> Health:
        """Return the problems of each workspace, of unread histories and of the connection from Slack."""
        problems = [f"{one.team} {one.problem}".strip() for one in self._workspaces if one.problem]
        problems += [one.inflow.history.problem for one in self._workspaces if one.inflow.history.problem]
        if self._socket_mode is not None and self._socket_mode.problem:
            problems.append(self._socket_mode.problem)
        elif self._starting > 0 and not problems:
            problems.append("starting")
        # Everyone can send forged requests, so those do not make the channel unhealthy.
        return Health(ok=not problems, detail="; ".join(problems or [self._webhook.refused]))

    async def _supervise(
        self, workspace: Workspace, receive: Receive, tasks: asyncio.TaskGroup, signed_in: Callable[[], None]
    ) -> None:
        """Run one workspace, and retry it after its token was rejected.

        Raises RefusedError if it is the only workspace and apps cannot be installed by OAuth.
        """
        while True:
            try:
                await workspace.run(receive, tasks, signed_in)
            except RefusedError as refused:
                if workspace.removed and self._installations is not None:
                    await self._app_removed(workspace)
                    signed_in()
                    return
                if self._installations is None and len(self._workspaces) == 1:
                    raise
                workspace.problem = str(refused)
                log.error("Slack rejected the token of a workspace", channel=self.id, reason=str(refused))
                signed_in()
            if workspace not in self._workspaces:
                return
            await asyncio.sleep(_REFUSED_PAUSE)

    def _workspace(self, token: str, *, home: bool) -> Workspace:
        return Workspace(self._host, self.id, self._options, token, self._app_removed, home=home)

    def _begin(self, workspace: Workspace, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        """Add a workspace while the channel runs."""
        self._workspaces.append(workspace)
        tasks.create_task(self._supervise(workspace, receive, tasks, lambda: None))

    async def _installed(self, team: str, token: str) -> None:
        """Save a token of a new installation, and run its workspace with it instead of the former token."""
        if self._installations is not None:
            await self._installations.save(team, token)
        former = self._find(team)
        if former is not None:
            self._dismiss(former)
        if self._add_running is not None:
            self._add_running(self._workspace(token, home=former is not None and former.home))

    async def _app_removed(self, workspace: Workspace) -> None:
        """Stop a workspace after the app was removed from it, and remove its saved token."""
        log.error("the app was removed from a workspace", channel=self.id, team=workspace.team)
        workspace.removed, workspace.problem = True, REMOVED_ADVICE
        if self._installations is None:
            return
        await self._installations.remove(workspace.token)
        self._dismiss(workspace)

    def _dismiss(self, workspace: Workspace) -> None:
        if workspace in self._workspaces:
            self._workspaces.remove(workspace)
        workspace.stop()

    def _catch_up(self, tasks: asyncio.TaskGroup) -> None:
        for workspace in self._workspaces:
            if workspace.team:
                workspace.inflow.history.read_all(tasks)

    def _inflow(self, team: str) -> Inflow | None:
        """Return the inflow of a team; of the first workspace if a delivery names no team."""
        workspace = self._find(team) if team else next(iter(self._workspaces), None)
        return None if workspace is None else workspace.inflow

    def _find(self, team: str) -> Workspace | None:
        return next((one for one in self._workspaces if one.team == team), None)

    def _workspace_of_user(self, user: str) -> Workspace | None:
        """Return the workspace in which a sender's id is valid."""
        team = user.rpartition(":")[0]
        return next((one for one in self._workspaces if (one.team == team if team else one.home)), None)

    def _workspace_of(self, address: Address) -> Workspace:
        """Return the workspace of an address.

        Raises PlacementDeferred while any workspace has not signed in, PlacementRefused if none has a token
        for it, or the app was removed from it.
        """
        workspace = self._find(address.account)
        if workspace is not None and not workspace.removed:
            return workspace
        if workspace is not None:
            raise PlacementRefused(REMOVED_ADVICE)
        if not all(one.team or one.removed for one in self._workspaces):
            raise PlacementDeferred("not signed in to the workspace yet", _NOT_SIGNED_IN_SECONDS)
        raise PlacementRefused(f"no token for this workspace; perhaps {REMOVED_ADVICE}")


def _secret(secret: SecretStr) -> str:
    return secret.get_secret_value().strip()
