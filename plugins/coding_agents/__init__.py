"""Coding agents in terminals: sessions that outlive the gateway, their workspaces and pull requests.

In: ``plugins.enabled = ["coding_agents"]`` and ``[plugins.coding_agents]``; requests of users, models and
HTTP clients; the output of programs. Out: typed text and keys, messages and questions in chats, rows of
terminals. The plugin loader imports it; nothing heavy is imported before the first session. ``README.md``
describes setup and design.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from gateway import (
    Answer,
    Intercept,
    Plugin,
    PluginContext,
    SlashCommand,
    Tool,
    ToolBlock,
    ToolCall,
    TurnContext,
    UserInput,
)
from gateway.api import ApiRoute, ApiSocket, Figure, RawRequest, RawResponse
from plugins.coding_agents.api import (
    PreflightReport,
    SessionRoutes,
    WorkspaceRoutes,
    check_machine,
    find_problem,
)
from plugins.coding_agents.errors import ServiceUnavailableError
from plugins.coding_agents.settings import TOKEN_VARIABLES, CodingAgentSettings
from plugins.coding_agents.tools import AgentTools
from plugins.coding_agents.tools.commands import AgentCommands
from plugins.coding_agents.tools.services import KEYS, caller_of
from plugins.programs.catalog import CLAUDE_CODE, CODEX, GEMINI, OPENCODE
from plugins.programs.environment import GIT_VARIABLES, SHARED_VARIABLES

if TYPE_CHECKING:
    from plugins.coding_agents.chat import SessionChats
    from plugins.coding_agents.sessions import Sessions
    from plugins.coding_agents.tools.desk import Desk

_PROGRAMS = (CLAUDE_CODE, CODEX, GEMINI, OPENCODE)
_TOKENS = tuple(name for names in TOKEN_VARIABLES.values() for name in names)


class CodingAgents(Plugin):
    """The plugin: it runs coding programs in terminals for the users of chats."""

    name = "coding_agents"
    asks_by_default = True
    settings_model = CodingAgentSettings
    api_prefixes = ("/api/coding-agents", "/api/workspaces")
    is_public = True
    """Webhooks prove the secret of their forge; they have no token of the gateway."""
    environ = tuple(
        sorted(SHARED_VARIABLES.union(_TOKENS, GIT_VARIABLES, *(one.variables for one in _PROGRAMS)))
    )

    def __init__(self) -> None:
        self._settings = CodingAgentSettings()
        self._ctx: PluginContext | None = None
        self._sessions: Sessions | None = None
        self._chats: SessionChats | None = None
        self._loading = asyncio.Lock()
        self._desk: Desk | None = None
        self._assembling = asyncio.Lock()
        self._tools = AgentTools(self.desk)
        self._commands = AgentCommands(self.desk, self.check)
        self._routes = SessionRoutes(self.service, lambda: self._sessions, self.figures, self.check)

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings, and attach the sessions of an earlier process."""
        self._settings = ctx.options(CodingAgentSettings)
        self._ctx = ctx
        if ctx.table is None or ctx.tasks is None or ctx.questions is None:
            return
        self._tools.chats = ctx.table("chats")
        ctx.questions.on_answer(self._answered)
        if await ctx.table("sessions").keys():
            await self.service()
        if await ctx.table("workspaces").keys() or await ctx.table("pull_requests").keys():
            ctx.tasks.create_task(self.desk(), name="coding agents")

    def tools(self) -> Sequence[Tool]:
        """Return the tools of models."""
        return self._tools.all

    def commands(self) -> Sequence[SlashCommand]:
        """Return the slash commands."""
        admin = self._settings.users == "admins"
        return [structs.replace(one, admin=admin) for one in self._commands.all]

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolBlock | None:
        """Note who calls a tool, and in which chat; block it for those who may not use coding agents."""
        names = {tool.name for tool in self._tools.all}
        if self._settings.users == "admins" and ctx.role != "admin" and call.name.casefold() in names:
            return ToolBlock("only admins may use coding agents here")
        await self._tools.note_chat(call.name, ctx)
        return None

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Send a reply to a message of a session to that session."""
        quoted = next((one.text for one in ctx.inbound.quotes if one.own and one.kind == "reply"), "")
        if self._chats is None or not quoted or (self._settings.users == "admins" and ctx.role != "admin"):
            return None
        key = f"reply {ctx.inbound.dedup_key}"
        reply = await self._chats.reply(text, quoted, caller_of(ctx).owner, key)
        return None if reply is None else Intercept(reply)

    async def deactivate(self) -> None:
        """Detach from all programs, which keep running."""
        if self._sessions is not None:
            await self._sessions.close()

    def routes(self) -> Sequence[ApiRoute | ApiSocket]:
        """Return the routes of sessions and workspaces."""
        return [*self._routes.routes(), *WorkspaceRoutes(self.desk).routes()]

    @property
    def pages(self) -> Sequence[tuple[str, str]]:
        """The routes of webhooks, which are open if a forge has a secret for them."""
        secrets = (one.webhook_secret for one in self._settings.forges.values())
        return (("POST", "/webhooks/{host}"),) if any(secrets) else ()

    def is_ready(self) -> bool:
        """Return whether the plugin is active."""
        return self._ctx is not None

    async def answer_http(self, request: RawRequest) -> RawResponse:
        """Let the watch look at what a webhook names."""
        # Only here, as above: it imports the clients of forges.
        from plugins.coding_agents.forges.webhooks import answer, read_webhook

        found = read_webhook(request, self._settings.forges)
        if isinstance(found, RawResponse):
            return found
        table = self._ctx.table if self._ctx is not None else None
        if table is None or not await table("pull_requests").keys():
            return answer(200, "no pull request is watched")
        count = await (await self.desk()).services.watch.hurry(found)
        return answer(200, f"{count} watched")

    def figures(self) -> Sequence[Figure]:
        """Return the metrics of sessions; none before the first one."""
        return () if self._sessions is None else self._sessions.figures()

    async def check(self) -> PreflightReport:
        """Check the programs and the sandbox. Raises ServiceUnavailableError before the plugin is active."""
        if self._ctx is None:
            raise ServiceUnavailableError("the plugin coding_agents is not active")
        return await check_machine(self._ctx, self._settings)

    async def find_problem(self) -> str:
        """Return what prevents sessions, such as a kernel that cannot confine programs."""
        return find_problem(await self.check(), self._settings)

    async def service(self) -> Sessions:
        """Return the sessions. Raises ServiceUnavailableError without a running gateway."""
        async with self._loading:
            if self._sessions is None:
                if self._ctx is None:
                    raise ServiceUnavailableError("the plugin coding_agents is not active")
                # Only here: it imports the terminal, which a gateway without sessions shall not pay for.
                from plugins.coding_agents.chat import SessionChats
                from plugins.coding_agents.sessions import Sessions

                sessions = Sessions(self._ctx, self._settings)
                sessions.workdir_of = self._workdir_of
                self._chats = chats = SessionChats(self._ctx, sessions)
                await sessions.load()
                chats.resume()
                self._sessions = sessions
            return self._sessions

    async def desk(self) -> Desk:
        """Return the actions of users. Raises ServiceUnavailableError without a running gateway."""
        sessions = await self.service()
        async with self._assembling:
            if self._desk is None:
                assert self._ctx is not None
                from plugins.coding_agents.tools.assembly import assemble

                self._desk = await assemble(self._ctx, self._settings, sessions)
            return self._desk

    async def _workdir_of(self, workspace: str, owner: str) -> str:
        """Return the folder of a workspace, which is in use from now on."""
        return await (await self.desk()).workdir_of(workspace, owner)

    async def _answered(self, answer: Answer) -> None:
        if answer.key.startswith(KEYS):
            await (await self.desk()).answered(answer)
            return
        await self.service()
        if self._chats is not None:
            await self._chats.answered(answer)


def create() -> Plugin:
    """Return the plugin."""
    return CodingAgents()
