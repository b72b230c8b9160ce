"""Summary notes: what summaries of long conversations must keep.

In: ``[plugins.summary_notes]``. Out: instructions for each summary, and one for the agents that have their
own. The plugin loader imports it.
"""

from __future__ import annotations

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
    """Adds the settings' instructions to those of the user."""

    name = "summary_notes"
    settings_model = SummaryNotesSettings

    def __init__(self) -> None:
        self._settings = SummaryNotesSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        self._settings = ctx.options(SummaryNotesSettings)

    async def session_compacting(self, compacting: Compacting, ctx: TurnContext) -> Compacting:
        """Return the compaction with more instructions."""
        notes = (compacting.instructions, self._settings.keep, self._settings.agents.get(ctx.agent, ""))
        return replace(compacting, instructions="\n".join(filter(None, notes)))


plugin = SummaryNotes()
