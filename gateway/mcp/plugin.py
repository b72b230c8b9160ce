"""The plugin of all MCP servers: their tools for models, and their states for the operator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from msgspec import Struct, structs

from gateway.contract.errors import NotFoundError, PluginError, ToolError
from gateway.contract.messages import DisplayHints, to_json
from gateway.contract.plugin import (
    ApiCall,
    ApiRoute,
    Plugin,
    PluginContext,
    SlashCommand,
    TurnContext,
    UserInput,
)
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool, ToolContext, ToolOutput
from gateway.mcp.commands import PromptCommands
from gateway.mcp.definitions import Definition, KnownTools, ToolState, model_name
from gateway.mcp.server import Server, ServerStatus
from gateway.plugin_services.bundles import PluginServers
from gateway.settings import McpServerSettings

if TYPE_CHECKING:
    from gateway.mcp.requests import Completes

log = structlog.get_logger("trunkline.mcp")

FOLDER = "mcp"
"""Folder in the data directory with a file of known tools for each server."""


class Statuses(Struct, frozen=True):
    """The states of all servers."""

    servers: tuple[ServerStatus, ...]


class ServerPath(Struct, frozen=True):
    """The path of one server."""

    server: str


class ServerTools(Struct, frozen=True):
    """The tools of one server."""

    tools: tuple[ToolState, ...]


class Approval(Struct, frozen=True):
    """Tools to approve as they are now; all without names."""

    tools: tuple[str, ...] = ()


class Approved(Struct, frozen=True):
    """The tools whose definition was approved now."""

    approved: tuple[str, ...]


class AuditLog(Protocol):
    """Takes actions; see ``PluginActions``."""

    def record(
        self,
        plugin: tuple[str, str, str],
        action: str,
        value: str,
        arguments: object = (),
        *,
        microseconds: int = 0,
    ) -> None:
        """Note an action, to be written soon."""
        ...


class Completions(Protocol):
    """Calls models for servers; see ``PluginCompletions``."""

    @property
    def complete(self) -> Completes:
        """Calls a model in a session."""
        ...

    async def window(self, session: str, agent: str) -> int:
        """Return the tokens that a request of an agent in a session may have."""
        ...


class Services(Protocol):
    """The parts of a running gateway that the plugins of servers use."""

    @property
    def completions(self) -> Completions:
        """Calls models."""
        ...

    @property
    def actions(self) -> AuditLog:
        """The audit log."""
        ...


class McpPlugin(Plugin):
    """The MCP servers of the settings and of plugins.

    Each call of a tool needs an approval unless a rule names the tool.
    """

    name = "mcp"
    asks_by_default = True
    environ = ("LANG", "LC_ALL", "PATH", "TZ")

    def __init__(
        self,
        settings: Mapping[str, McpServerSettings],
        complete: Callable[[], Completes] | None = None,
        audit: Callable[[], AuditLog] | None = None,
        of_plugins: PluginServers | None = None,
    ) -> None:
        self._settings = settings
        self._complete = complete
        self._audit = audit
        self._of_plugins = of_plugins or PluginServers()
        self._servers: dict[str, Server] = {}
        self._tools: tuple[Tool, ...] = ()
        self._prompts = PromptCommands()
        self._context: PluginContext | None = None

    async def activate(self, ctx: PluginContext) -> None:
        """Read the known tools. Servers that were never seen are started once, in the background."""
        self._context = ctx
        for name, settings in self._wanted().items():
            await self._add(ctx, name, settings)
        self._of_plugins.on_change = partial(self._follow, ctx)
        self._rebuild()

    async def deactivate(self) -> None:
        """Follow the plugins no longer."""
        self._of_plugins.on_change = lambda: None

    def _wanted(self) -> Mapping[str, McpServerSettings]:
        return {**self._of_plugins.settings, **self._settings}

    async def _add(self, ctx: PluginContext, name: str, settings: McpServerSettings) -> None:
        known = known_tools(Path(ctx.cwd), name, settings)
        await asyncio.to_thread(known.load)
        self._servers[name] = Server(
            name,
            settings,
            known,
            ctx.processes,
            ctx.environ,
            ctx.tasks,
            self._rebuild,
            self._complete,
            login=login_file(Path(ctx.cwd), name),
        )
        if settings.enabled and known.is_empty and ctx.tasks is not None:
            ctx.tasks.create_task(_learn(self._servers[name]), name=f"tools of MCP server {name}")

    def _follow(self, ctx: PluginContext) -> None:
        """End the servers of removed plugins, and add those of new ones."""
        wanted = self._wanted()
        for name, server in [*self._servers.items()]:
            if wanted.get(name) != server.settings:
                server.stop()
                del self._servers[name]
        self._rebuild()
        if ctx.tasks is not None and wanted.keys() - self._servers.keys():
            ctx.tasks.create_task(self._add_new(ctx), name="MCP servers of plugins")

    async def _add_new(self, ctx: PluginContext) -> None:
        for name, settings in self._wanted().items():
            if name not in self._servers:
                await self._add(ctx, name, settings)
        self._rebuild()

    async def find_problem(self) -> str:
        """Return which tools wait for an approval. `trunkline mcp test` starts a server."""
        return "; ".join(
            f"{server.status.waiting} tools of the MCP server {server.name!r} wait for "
            f"`trunkline mcp approve {server.name}`"
            for server in self._servers.values()
            if server.settings.enabled and server.status.waiting
        )

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all servers, whether these run or not."""
        return self._tools

    def commands(self) -> Sequence[SlashCommand]:
        """Return the prompts of all servers, whether these run or not."""
        return self._prompts.commands

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Replace a command by the text of its prompt."""
        return await self._prompts.transform(text)

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str | None:
        """Let tools ask in an answer to a prompt."""
        self._prompts.begin()
        return None

    def routes(self) -> Sequence[ApiRoute]:
        """Return the routes for the operator's commands."""
        missing = (NotFoundError,)
        return (
            ApiRoute("GET", "/servers", "List the MCP servers with their states", self._list),
            ApiRoute("GET", "/servers/{server}", "List the tools of an MCP server", self._show, missing),
            ApiRoute(
                "POST",
                "/servers/{server}/refresh",
                "Read the tools that another process has listed, and let the server start again",
                self._refresh,
                missing,
                needs_proof=True,
            ),
            ApiRoute(
                "POST",
                "/servers/{server}/approve",
                "Approve changed and new tools",
                self._approve,
                missing,
                needs_proof=True,
            ),
        )

    async def _list(self, call: ApiCall[None, None, None]) -> Statuses:
        return Statuses(self.statuses)

    async def _show(self, call: ApiCall[ServerPath, None, None]) -> ServerTools:
        return ServerTools(tuple(self.server(call.path.server).known.states()))

    async def _refresh(self, call: ApiCall[ServerPath, None, None]) -> ServerStatus:
        server = self.server(call.path.server)
        await asyncio.to_thread(server.known.load)
        server.forgive()
        self._rebuild()
        return server.status

    async def _approve(self, call: ApiCall[ServerPath, None, Approval]) -> Approved:
        server = self.server(call.path.server)
        approved = await asyncio.to_thread(server.known.approve, call.body.tools)
        self._rebuild()
        log.info("tools of an MCP server were approved", server=server.name, tools=approved, by=call.user)
        return Approved(tuple(approved))

    @property
    def statuses(self) -> tuple[ServerStatus, ...]:
        """The states of all servers."""
        return tuple(server.status for server in self._servers.values())

    def server(self, name: str) -> Server:
        """Return a server. Raises NotFoundError."""
        found = self._servers.get(name)
        if found is None:
            raise NotFoundError(
                f"there is no MCP server {name!r}; the settings have {', '.join(self._servers)}"
            )
        return found

    def _rebuild(self) -> None:
        """Replace the lists of tools and commands; each gets a name that no other one has."""
        assert self._context is not None, "servers are made by activate"
        own = {id(tool) for tool in self._tools}
        taken = {tool.name for tool in self._context.registry.get_tools() if id(tool) not in own}
        found: list[Tool] = []
        for server in self._servers.values():
            for definition in server.known.offered() if server.settings.enabled else ():
                tool = self._tool(server, definition)
                if tool.name in taken:
                    log.warning(
                        "a tool of an MCP server is left out: another tool has its name",
                        server=server.name,
                        tool=definition.name,
                        name=tool.name,
                    )
                    continue
                taken.add(tool.name)
                found.append(tool)
        self._tools = tuple(found)
        own_commands = {id(command) for command in self._prompts.commands}
        self._prompts.rebuild(
            self._servers.values(),
            {each.name for each in self._context.registry.get_commands() if id(each) not in own_commands},
        )

    def _tool(self, server: Server, definition: Definition) -> Tool:
        return Tool(
            definition=ToolDefinition(
                model_name(server.name, definition.name), definition.description, definition.schema
            ),
            execute=partial(self._call, server, definition),
            display=DisplayHints(verb=f"calling {server.name}"),
            match_key=lambda given: to_json(dict(sorted(given.items()))).decode(),
            # A call may have to start the server first.
            timeout_ms=2 * server.settings.timeout,
        )

    async def _call(
        self, server: Server, definition: Definition, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolOutput:
        """Call a tool and note it in the audit log. What comes from elsewhere may instruct the model."""
        user, begun = (context.session, context.ask), time.perf_counter()
        try:
            output = await server.call(definition.name, arguments, context.progress, user)
        finally:
            if self._audit is not None:
                about = (f"mcp:{server.name}", "", definition.digest)
                spent = round((time.perf_counter() - begun) * 1_000_000)
                self._audit().record(about, "mcp.call", definition.name, arguments, microseconds=spent)
        settings = server.settings
        reaches_others = (
            bool(settings.url) or settings.capabilities.network.enabled or settings.trust == "full"
        )
        return structs.replace(output, untrusted=reaches_others)


def known_tools(data_dir: Path, name: str, settings: McpServerSettings) -> KnownTools:
    """Return the known tools of a server, not read yet."""
    return KnownTools(data_dir / FOLDER / f"{name}.json", settings.tools)


def login_file(data_dir: Path, name: str) -> Path:
    """Return the file with the login at a remote server."""
    return data_dir / FOLDER / f"{name}.login"


async def _learn(server: Server) -> None:
    try:
        await server.connect()
    except (ToolError, PluginError) as error:
        log.warning("the tools of an MCP server are not known yet", server=server.name, reason=str(error))
