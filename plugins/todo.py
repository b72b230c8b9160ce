"""To-do lists of conversations: the model plans its work as a list, which the chat shows as one message.

In: the tools ``todo_write`` and ``todo_read``. Out: one list for each session, kept in a table, and an
announcement that is edited whenever the list has changed. The plugin loader imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field

from gateway import (
    DisplayHints,
    Message,
    Plugin,
    PluginContext,
    TextPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    TrunklineError,
    TurnContext,
    tool_from,
)

log = structlog.get_logger("trunkline.todo")

MOST_ITEMS = 50
_MARKS = {"pending": "☐", "in_progress": "▶️", "completed": "☑", "cancelled": "✖️"}
_OPEN = ("pending", "in_progress")
_MOST_CHATS = 10_000


class TodoItem(BaseModel):
    """One item of a list."""

    model_config = ConfigDict(extra="forbid")

    content: str = Field(min_length=1, max_length=300, description="What to do, in one line")
    status: Literal["pending", "in_progress", "completed", "cancelled"] = Field(
        default="pending", description="State of the work"
    )
    priority: Literal["high", "medium", "low"] = Field(default="medium", description="Importance")


class TodoSettings(BaseModel):
    """The plugin has no settings."""


class Todo(Plugin):
    """Two tools for a list of each conversation."""

    name = "todo"
    settings_model = TodoSettings

    def __init__(self) -> None:
        self._addresses: dict[str, Any] = {}
        self._tools = (
            tool_from(
                self.todo_write,
                display=DisplayHints(verb="updating the list"),
                read_only=True,
                idempotent=True,
            ),
            tool_from(
                self.todo_read, display=DisplayHints(verb="reading the list"), read_only=True, idempotent=True
            ),
        )

    async def activate(self, ctx: PluginContext) -> None:
        """Open the table of lists."""
        self._announce = ctx.announce
        self._lists = None if ctx.table is None else ctx.table("lists")

    def tools(self) -> Sequence[Tool]:
        """Return the two tools."""
        return self._tools

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> None:
        """Note the chat in which a list is to be shown."""
        if call.name == self.todo_write.__name__:
            self._addresses[ctx.session] = ctx.inbound.address
            if len(self._addresses) > _MOST_CHATS:
                del self._addresses[next(iter(self._addresses))]

    async def todo_write(
        self,
        context: ToolContext,
        todos: Annotated[
            list[TodoItem], Field(max_length=MOST_ITEMS, description="The whole list, which replaces the old")
        ],
    ) -> str:
        """Replace the to-do list of this conversation. The user sees it.

        Use it for work of three steps or more: write the list first, keep one item in progress, and complete
        each item as soon as it is done.
        """
        if self._lists is None:
            raise ToolError("the gateway keeps no lists now")
        items = [item.model_dump() for item in todos]
        await self._lists.put(context.session, items)
        await self._show(context.session, items)
        left = sum(item["status"] in _OPEN for item in items)
        return f"The list has {len(items)} items, {left} of them open."

    async def todo_read(self, context: ToolContext) -> str:
        """Read the to-do list of this conversation."""
        items = None if self._lists is None else await self._lists.get(context.session)
        return _as_markdown(items) if items else "The list is empty."

    async def open_items(self, session: str) -> str:
        """Return what is open in the list of a conversation, as Markdown. For other plugins."""
        items = None if self._lists is None else await self._lists.get(session)
        return _as_markdown([one for one in items or () if one["status"] in _OPEN])

    async def _show(self, session: str, items: Sequence[dict[str, Any]]) -> None:
        """Announce the list, or edit its announcement. Where that is impossible, only the model has it."""
        address = self._addresses.get(session)
        if self._announce is None or address is None:
            return
        text = f"**To do**\n\n{_as_markdown(items)}" if items else "**To do**\n\nnothing"
        message = Message(session_id=session, role="assistant", parts=(TextPart(text),), for_model=False)
        try:
            await self._announce(address, message, session)
        except TrunklineError as error:
            log.info("a list is not shown in its chat", session=session, reason=str(error))


def _as_markdown(items: Sequence[dict[str, Any]]) -> str:
    lines: list[str] = []
    for item in items:
        text = " ".join(str(item["content"]).split())
        text = f"~~{text}~~" if item["status"] == "cancelled" else text
        urgent = " (high)" if item["priority"] == "high" else ""
        lines.append(f"- {_MARKS[item['status']]} {text}{urgent}")
    return "\n".join(lines)


def create() -> Plugin:
    """Make the plugin."""
    return Todo()
