"""Summary notes: what summaries of long conversations must keep.

In: ``[plugins.summary_notes]``, and the list of the plugin ``todo``. Out: instructions for each summary, also
those of single agents. The plugin loader imports it.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from pydantic import BaseModel, Field

from gateway import Compacting, Plugin, PluginContext, TurnContext


class SummaryNotesSettings(BaseModel):
    """The settings of the plugin."""

    keep: str = Field(default="", description="What every summary must keep; default empty")
    agents: dict[str, str] = Field(
        default={}, description="What summaries of an agent's conversations must keep, by agent"
    )


class SummaryNotes(Plugin):
    """Adds the settings' instructions and the open to-do items to the instructions of the user."""

    name = "summary_notes"
    settings_model = SummaryNotesSettings

    def __init__(self) -> None:
        self._settings = SummaryNotesSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        self._settings = ctx.options(SummaryNotesSettings)
        self._get_plugin = ctx.get_plugin

    async def session_compacting(self, compacting: Compacting, ctx: TurnContext) -> Compacting:
        """Return the compaction with more instructions."""
        # At each call: the plugin may be enabled, reloaded or removed meanwhile.
        todo: Any = self._get_plugin("todo")
        items = "" if todo is None else await todo.open_items(ctx.session)
        notes = (
            compacting.instructions,
            self._settings.keep,
            self._settings.agents.get(ctx.agent, ""),
            f"Keep this to-do list:\n{items}" if items else "",
        )
        return replace(compacting, instructions="\n".join(filter(None, notes)))


plugin = SummaryNotes()
