"""Coding agents in terminals: sessions that outlive the gateway, their workspaces and pull requests.

In: ``plugins.enabled = ["coding_agents"]`` and ``[plugins.coding_agents]``; requests of users, models and
HTTP clients; the output of programs. Out: typed text and keys, messages and questions in chats, rows of
terminals. The plugin loader imports it; nothing heavy is imported before the first session. ``README.md``
describes setup and design.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from gateway import Plugin, PluginContext
from plugins.coding_agents.errors import ServiceUnavailableError
from plugins.coding_agents.settings import TOKEN_VARIABLES, CodingAgentSettings
from plugins.programs.catalog import CLAUDE_CODE, CODEX, GEMINI, OPENCODE
from plugins.programs.environment import GIT_VARIABLES, SHARED_VARIABLES

if TYPE_CHECKING:
    from plugins.coding_agents.sessions import Sessions

log = structlog.get_logger("trunkline.coding_agents")

_PROGRAMS = (CLAUDE_CODE, CODEX, GEMINI, OPENCODE)
_TOKENS = tuple(name for names in TOKEN_VARIABLES.values() for name in names)


class CodingAgents(Plugin):
    """The plugin: it runs coding programs in terminals for the users of chats."""

    name = "coding_agents"
    asks_by_default = True
    settings_model = CodingAgentSettings
    environ = tuple(
        sorted(SHARED_VARIABLES.union(_TOKENS, GIT_VARIABLES, *(one.variables for one in _PROGRAMS)))
    )

    def __init__(self) -> None:
        self._settings = CodingAgentSettings()
        self._ctx: PluginContext | None = None
        self._sessions: Sessions | None = None
        self._loading = asyncio.Lock()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings, and attach the sessions of an earlier process."""
        self._settings = ctx.options(CodingAgentSettings)
        self._ctx = ctx
        if ctx.table is not None and await ctx.table("sessions").keys():
            await self.service()

    async def deactivate(self) -> None:
        """Detach from all programs; they go on."""
        if self._sessions is not None:
            await self._sessions.close()

    async def service(self) -> Sessions:
        """Return the sessions. Raises ServiceUnavailableError without a running gateway."""
        async with self._loading:
            if self._sessions is None:
                if self._ctx is None:
                    raise ServiceUnavailableError("the plugin coding_agents is not active")
                # Only here: it imports the terminal, which a gateway without sessions shall not pay for.
                from plugins.coding_agents.sessions import Sessions

                sessions = Sessions(self._ctx, self._settings)
                await sessions.load()
                self._sessions = sessions
            return self._sessions


def create() -> Plugin:
    """Return the plugin."""
    return CodingAgents()
