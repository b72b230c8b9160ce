"""Recent messages: the model gets only the newest part of a conversation, which limits the cost of each call.

In: ``[plugins.recent_messages]``. Out: shorter model calls; the session and its readers keep every message.
The plugin loader imports it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from gateway import ChatOptions, Message, Plugin, PluginContext, TurnContext, now_ms

_MS_PER_HOUR = 3_600_000


class RecentMessagesSettings(BaseModel):
    """The settings of the plugin."""

    messages: int = Field(
        default=40, ge=1, description="Most messages of a model call, answers included; default 40"
    )
    hours: float | None = Field(
        default=None, gt=0, description="Age in hours from which messages are left out; no limit if unset"
    )


class RecentMessages(Plugin):
    """A limit on the messages of a model call, by number and age.

    A call always begins with a user message and contains the newest one. A tool call is never separated from
    its result, because both are in one message.
    """

    name = "recent_messages"
    settings_model = RecentMessagesSettings

    def __init__(self) -> None:
        self._settings = RecentMessagesSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        self._settings = ctx.options(RecentMessagesSettings)

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> Sequence[Message]:
        """Return the newest messages, after the system messages of the conversation."""
        first = self._first(messages)
        return [*(message for message in messages[:first] if message.role == "system"), *messages[first:]]

    def _first(self, messages: Sequence[Message]) -> int:
        """Return the index of the first message that the model gets."""
        least, hours = len(messages) - self._settings.messages, self._settings.hours
        oldest_ms = 0 if hours is None else now_ms() - hours * _MS_PER_HOUR
        asked = [index for index, message in enumerate(messages) if message.role == "user"]
        recent = [index for index in asked if index >= least and messages[index].created_at >= oldest_ms]
        # While tools run, the newest user message may be further back than the limit.
        return (recent[:1] or asked[-1:] or [0])[0]


plugin = RecentMessages()
