"""Batches: the tool ``batch`` runs several tool calls at the same time.

In: up to ten calls of a model. Out: one result that lists theirs in the same order. Each call has the
permissions, approvals, hooks and time limit that it would have by itself. The plugin loader imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gateway import DisplayHints, Plugin, Tool, ToolContext, ToolOutput, tool_from

MOST_CALLS = 10
_TIMEOUT_MS = 600_000
"""Time limit of a batch besides the time of its calls, which have their own limits."""


class BatchedCall(BaseModel):
    """One call of a batch."""

    model_config = ConfigDict(extra="forbid")

    tool: str = Field(description="Name of the tool")
    arguments: dict[str, Any] = Field(default={}, description="Arguments of the call")


async def batch(
    context: ToolContext,
    calls: Annotated[
        list[BatchedCall], Field(min_length=1, max_length=MOST_CALLS, description="The calls to run")
    ],
) -> ToolOutput:
    """Run up to ten tool calls at the same time, when none needs the result of another.

    A call that fails does not stop the others. A batch cannot contain another batch.
    """

    async def run(call: BatchedCall) -> ToolOutput:
        if call.tool.casefold() == batch.__name__:
            return ToolOutput("Error: a batch cannot contain another batch.", is_error=True)
        output = await context.call_tool(call.tool, call.arguments)
        context.progress(f"{'✗' if output.is_error else '✓'} {call.tool}\n")
        return output

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(call)) for call in calls]
    outputs = [task.result() for task in running]
    sections = [
        f"[{number}] {call.tool}{' (failed)' if output.is_error else ''}\n{output.content}"
        for number, (call, output) in enumerate(zip(calls, outputs, strict=True), 1)
    ]
    return ToolOutput(
        "\n\n".join(sections),
        is_error=all(output.is_error for output in outputs),
        attachments=tuple(one for output in outputs for one in output.attachments),
    )


class BatchSettings(BaseModel):
    """The plugin has no settings."""


class Batch(Plugin):
    """A tool that runs several tool calls at the same time."""

    name = "batch"
    settings_model = BatchSettings

    def tools(self) -> Sequence[Tool]:
        """Return the tool."""
        return (_TOOL,)


# The batch itself does nothing: each of its calls needs its own permission.
_TOOL = tool_from(
    batch, display=DisplayHints(verb="running several tools"), read_only=True, timeout_ms=_TIMEOUT_MS
)


def create() -> Plugin:
    """Make the plugin."""
    return Batch()
