"""The tool ``tool_search``, which models get in place of the tools of servers where these are too many."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from pydantic import Field

from gateway.contract.messages import DisplayHints
from gateway.contract.plugin import Plugin, TurnContext
from gateway.contract.tool import Tool, ToolContext, tool_from
from gateway.mcp.plugin import McpPlugin, Services
from gateway.plugin_services.bundles import PluginServers
from gateway.settings import McpServerSettings

MOST_TOOLS = 40
"""Tools of servers that are offered without a search."""
BYTES_PER_TOKEN = 0.4
"""Bytes of their definitions for each token of a model's window: a tenth of it, at four bytes for a token."""
_SMALLEST_WINDOW = 4_000

_MOST_FOUND = 8
_MOST_SESSIONS = 1_000
_NAME_WEIGHT = 3


class McpSearch(Plugin):
    """Hides the tools of servers where they are too many, and offers those that a search has found."""

    name = "mcp_search"

    def __init__(self, mcp: McpPlugin, window: Callable[[str, str], Awaitable[int]]) -> None:
        self._mcp = mcp
        self._window = window
        self._measured: tuple[Sequence[Tool], int] = ((), 0)
        self._found: OrderedDict[str, set[str]] = OrderedDict()
        self._tool = tool_from(
            self.tool_search,
            display=DisplayHints(verb="searching for tools", fields={"query": "query"}),
            idempotent=True,
            read_only=True,
        )

    def tools(self) -> Sequence[Tool]:
        """Return the search if a small model needs it."""
        return (self._tool,) if self._is_needed(_SMALLEST_WINDOW) else ()

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> Sequence[Tool] | None:
        """Leave out the tools of servers that no search in the session has found, or else the search."""
        if not self._is_needed(_SMALLEST_WINDOW):
            return None
        if not self._is_needed(await self._window(ctx.session, ctx.agent)):
            return [tool for tool in tools if tool is not self._tool]
        hidden = {tool.name for tool in self._mcp.tools()} - self._found.get(ctx.session, set())
        return [tool for tool in tools if tool.name not in hidden]

    async def tool_search(
        self,
        query: Annotated[str, Field(min_length=1, max_length=200, description="What the tool should do")],
        context: ToolContext,
    ) -> str:
        """Find further tools by words. Those that are found can be called from then on."""
        words = set(re.findall(r"\w+", query.lower()))
        ranked = sorted(self._mcp.tools(), key=lambda tool: -_score(tool, words))
        found = [tool for tool in ranked[:_MOST_FOUND] if _score(tool, words)]
        if not found:
            return "No tool was found. Try other words."
        self._found.setdefault(context.session, set()).update(tool.name for tool in found)
        self._found.move_to_end(context.session)
        while len(self._found) > _MOST_SESSIONS:
            self._found.popitem(last=False)
        return "\n".join(f"{tool.name}: {tool.definition.description[:300]}" for tool in found)

    def _is_needed(self, window: int) -> bool:
        """Return whether the tools are too many for a context window of this many tokens."""
        tools = self._mcp.tools()
        if self._measured[0] is not tools:
            self._measured = (tools, sum(len(msgspec.json.encode(tool.definition)) for tool in tools))
        return len(tools) > MOST_TOOLS or self._measured[1] > window * BYTES_PER_TOKEN


def _score(tool: Tool, words: set[str]) -> int:
    """Return how well a tool fits some words; 0 if none of them occurs."""
    name, description = tool.name.lower(), tool.definition.description.lower()
    return sum(_NAME_WEIGHT * (word in name) + (word in description) for word in words)


def mcp_plugins(
    servers: Mapping[str, McpServerSettings], of_plugins: PluginServers, services: Callable[[], Services]
) -> Mapping[str, Plugin]:
    """Return the plugins for these servers, in order. ``services`` are those of the running gateway."""
    mcp = McpPlugin(servers, lambda: services().completions.complete, lambda: services().actions, of_plugins)
    search = McpSearch(mcp, lambda session, agent: services().completions.window(session, agent))
    return {each.name: each for each in (mcp, search)}
