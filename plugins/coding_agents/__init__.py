"""Coding agents in terminals: sessions that outlive the gateway, their workspaces and pull requests.

In: ``plugins.enabled = ["coding_agents"]`` and ``[plugins.coding_agents]``; requests of users, models and
HTTP clients; the output of programs. Out: typed text and keys, messages and questions in chats, rows of
terminals. The plugin loader imports it; nothing heavy is imported before the first session. ``README.md``
describes setup and design.
"""

from __future__ import annotations

import structlog

from gateway import Plugin, PluginContext
from plugins.coding_agents.settings import TOKEN_VARIABLES, CodingAgentSettings

log = structlog.get_logger("trunkline.coding_agents")


class CodingAgents(Plugin):
    """The plugin: it runs coding programs in terminals for the users of chats."""

    name = "coding_agents"
    asks_by_default = True
    settings_model = CodingAgentSettings
    environ = tuple(name for names in TOKEN_VARIABLES.values() for name in names)

    def __init__(self) -> None:
        self._settings = CodingAgentSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        self._settings = ctx.options(CodingAgentSettings)
        log.info("coding agents are on", max_sessions=self._settings.max_sessions)


def create() -> Plugin:
    """Return the plugin."""
    return CodingAgents()
