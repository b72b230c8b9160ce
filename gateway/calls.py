"""The tool calls of a turn: each recorded before its tool runs and after, and shown as it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.deltas import PartDelta
from gateway.deltas import ToolResultDelta as ResultDelta
from gateway.deltas import ToolResultEnd as ResultEnd
from gateway.messages import DisplayHints, Part, ResultMetadata, ToolCallPart, ToolResultPart
from gateway.session import Turn
from gateway.steps import Steps, key_of
from gateway.tool import RunNested, Tool, ToolOutput
from gateway.toolbox import Means, Toolbox

OUTCOME_UNKNOWN = (
    "Error: the gateway stopped while this tool was running. Its outcome is unknown and it was not run again."
)


class Calls:
    """Runs the calls that models make. ``nest`` gives a call the means to start runs of its own."""

    def __init__(self, toolbox: Toolbox, steps: Steps, nest: Callable[[Turn, str], RunNested]) -> None:
        self._toolbox = toolbox
        self._steps = steps
        self._nest = nest

    async def run(
        self, turn: Turn, tools: Sequence[Tool], said: Sequence[Part], calls: Sequence[ToolCallPart]
    ) -> list[ToolOutput]:
        """Run calls one after another. ``said`` is all that the model said along with them."""
        by_name = {tool.name: tool for tool in reversed(tools)}
        step = turn.steps_written
        if turn.durable:
            await self._steps.record(turn.entry.id, step, said, calls)
            turn.steps_written = step + 1 + len(calls)
        return [await self._run(turn, by_name, call, number) for number, call in enumerate(calls, step + 1)]

    async def resume(self, turn: Turn, tools: Sequence[Tool]) -> None:
        """Take over what an earlier attempt had done before the gateway died."""
        calls: dict[str, ToolCallPart] = {}
        by_name = {tool.name: tool for tool in reversed(tools)}
        for step in await self._steps.load(turn.entry.id):
            turn.steps_written = step.number + 1
            for part in step.parts:
                turn.emit_part(part)
                if isinstance(part, ToolCallPart):
                    calls[key_of(turn.entry.id, part.tool_call_id)] = part
            if step.state == "called":
                await self._run(turn, by_name, calls[step.key], step.number)
            elif step.state == "intent":
                await self._give_up(turn, calls[step.key], step.number)

    async def _run(
        self, turn: Turn, tools: Mapping[str, Tool], call: ToolCallPart, number: int
    ) -> ToolOutput:
        tool = tools.get(call.tool_name)
        title = tool.display.verb if tool is not None else None
        start = turn.writer.result(call.tool_call_id, title, _hints(tool))
        turn.emit(start)

        def show(text: str) -> None:
            turn.emit(ResultDelta(turn.message_id, start.part_index, call.tool_call_id, text))

        async def begin(tool: Tool) -> None:
            if turn.durable and not tool.idempotent:
                await self._steps.intend(turn.entry.id, number, call.tool_call_id)

        means = Means(begin, show, self._nest(turn, call.tool_call_id))
        output, took = await self._toolbox.run(turn, tools, call, means)
        known = output.metadata or ResultMetadata()
        result = ToolResultPart(
            call.tool_call_id,
            output.content,
            output.title or title,
            msgspec.structs.replace(known, duration_ms=took),
            output.attachments,
            is_error=output.is_error,
            display=start.display,
        )
        if turn.durable:
            await self._steps.report(turn.entry.id, number, result)
        self._end(turn, start.part_index, result, took)
        return output

    def _end(self, turn: Turn, index: int, result: ToolResultPart, took: int) -> None:
        """Show that a tool is done, and the whole result where it is not what was shown so far."""
        call_id = result.tool_call_id
        turn.emit(ResultEnd(turn.message_id, index, call_id, result.is_error, took, result.metadata))
        if turn.assembler.parts_from(index)[0][1] != result:
            turn.emit(PartDelta(turn.message_id, index, result))
        turn.tell_messages()

    async def _give_up(self, turn: Turn, call: ToolCallPart, number: int) -> None:
        unknown = ToolResultPart(call.tool_call_id, OUTCOME_UNKNOWN, is_error=True)
        await self._steps.report(turn.entry.id, number, unknown)
        turn.emit_part(unknown)


def _hints(tool: Tool | None) -> DisplayHints | None:
    """How a result may be shown, if its tool says more than a verb, which is the title already."""
    return tool.display if tool is not None and (tool.display.kind or tool.display.fields) else None
