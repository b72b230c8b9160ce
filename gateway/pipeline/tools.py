"""Tool calls: ``ToolCalls`` records and shows the calls of a turn, ``ToolRunner`` runs a single one.

The order for one call: permission (and a person's approval), ``before_tool_exec`` hooks, the durable record
that the tool begins, the tool, ``after_tool_exec`` hooks, the durable result. Failures become results, so
that the model can react to them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, assert_never

import msgspec
import structlog
from msgspec import Struct

from gateway.access.approvals import Approvals, Outcome, forget_decisions, used_decisions
from gateway.access.permissions import Permissions, rule_to_add
from gateway.contract.deltas import PartDelta
from gateway.contract.deltas import ToolResultDelta as ResultDelta
from gateway.contract.deltas import ToolResultEnd as ResultEnd
from gateway.contract.errors import CATCHABLE, ToolError, is_cancellation_requested
from gateway.contract.messages import (
    ABORTED,
    DisplayHints,
    Part,
    ResultMetadata,
    ToolCallPart,
    ToolResultPart,
    sound,
    to_json,
)
from gateway.contract.plugin import ToolBlock, ToolCall
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import RunNested, Tool, ToolContext, ToolOutput, as_output
from gateway.extensions.registry import PluginRegistry
from gateway.session import Turn
from gateway.session.bus import ActivityBus
from gateway.store.steps import Steps, make_key

log = structlog.get_logger("trunkline.tools")

Show = Callable[[str], None]

OUTCOME_UNKNOWN = (
    "Error: the gateway stopped while this tool was running. Its outcome is unknown and it was not run again."
)


class CallServices(Struct, frozen=True):
    """Functions that a turn provides to one of its tool calls."""

    begin: Callable[[Tool], Awaitable[None]]
    """Records that the tool is about to run; the tool runs after it returns."""
    show: Show
    """Shows progress of the tool, or its output."""
    nest: RunNested
    """Starts a nested run."""


class ToolCalls:
    """Runs the tool calls of turns: records each one durably, and shows its progress and result."""

    def __init__(self, runner: ToolRunner, steps: Steps, nest: Callable[[Turn, str], RunNested]) -> None:
        """``nest`` returns the function that starts nested runs for a turn and a call id."""
        self._runner = runner
        self._steps = steps
        self._nest = nest

    async def run(
        self, turn: Turn, tools: Sequence[Tool], parts: Sequence[Part], calls: Sequence[ToolCallPart]
    ) -> list[ToolOutput]:
        """Run calls one after another. ``parts`` is the whole output of the model that contains them."""
        by_name = {tool.name: tool for tool in reversed(tools)}
        step = turn.steps_written
        if turn.durable:
            # Counted before the commit: /stop may cancel the wait for it, and the answer's commit deletes
            # the steps only if this count says that there are some.
            turn.steps_written = step + 1 + len(calls)
            await self._steps.record(turn.entry.id, step, parts, calls)
        return [await self._run(turn, by_name, call, number) for number, call in enumerate(calls, step + 1)]

    async def resume(self, turn: Turn, tools: Sequence[Tool]) -> None:
        """Restore the steps of an attempt that a crash ended, and run the calls that it had not begun."""
        calls: dict[str, ToolCallPart] = {}
        by_name = {tool.name: tool for tool in reversed(tools)}
        for step in await self._steps.load(turn.entry.id):
            turn.steps_written = step.number + 1
            for part in step.parts:
                turn.emit_part(part)
                if isinstance(part, ToolCallPart):
                    calls[make_key(turn.entry.id, part.tool_call_id)] = part
            if step.state == "called":
                await self._run(turn, by_name, calls[step.key], step.number)
            elif step.state == "intent":
                # The tool may have had its effect before the crash: running it again could do it twice.
                await self._report_unknown(turn, calls[step.key], step.number)

    async def recall(self, turn: Turn) -> None:
        """Show the steps of an earlier attempt without running any tool, unless they were restored already.

        A repeated turn may be stopped, or fail, before it restores them; its answer still says what was done.
        """
        if turn.steps_written or not turn.is_repeated:
            return
        calls: dict[str, ToolCallPart] = {}
        for step in await self._steps.load(turn.entry.id):
            for part in step.parts:
                turn.emit_part(part)
                if isinstance(part, ToolCallPart):
                    calls[make_key(turn.entry.id, part.tool_call_id)] = part
            turn.steps_written = step.number + 1
            if step.state == "intent":
                call_id = calls[step.key].tool_call_id
                turn.emit_part(ToolResultPart(call_id, OUTCOME_UNKNOWN, is_error=True))

    async def _run(
        self, turn: Turn, tools: Mapping[str, Tool], call: ToolCallPart, number: int
    ) -> ToolOutput:
        tool = tools.get(call.tool_name)
        title = tool.display.verb if tool is not None else None
        start = turn.writer.result(call.tool_call_id, title, _display_hints(tool))
        turn.emit(start)

        def show(text: str) -> None:
            turn.emit(ResultDelta(turn.message_id, start.part_index, call.tool_call_id, text))

        async def begin(tool: Tool) -> None:
            # An idempotent tool needs no intent: after a crash it is simply run again.
            if turn.durable and not tool.idempotent:
                await self._steps.intend(turn.entry.id, number, call.tool_call_id, *used_decisions(turn))

        services = CallServices(begin, show, self._nest(turn, call.tool_call_id))
        try:
            output, took_ms = await self._runner.run(turn, tools, call, services)
        except asyncio.CancelledError:
            # The progress that readers saw is replaced: a model must not mistake it for the result.
            stopped = ToolResultPart(call.tool_call_id, ABORTED, title, is_error=True, display=start.display)
            turn.emit(PartDelta(turn.message_id, start.part_index, stopped))
            raise
        metadata = output.metadata or ResultMetadata()
        result = ToolResultPart(
            call.tool_call_id,
            output.content,
            output.title or title,
            msgspec.structs.replace(metadata, duration_ms=took_ms),
            output.attachments,
            is_error=output.is_error,
            display=start.display,
        )
        if turn.durable:
            await self._steps.report(turn.entry.id, number, result, *used_decisions(turn))
        self._show_result(turn, start.part_index, result, took_ms)
        return output

    def _show_result(self, turn: Turn, index: int, result: ToolResultPart, took_ms: int) -> None:
        """Show the end of a tool call, and its whole result where that differs from its progress."""
        call_id = result.tool_call_id
        turn.emit(ResultEnd(turn.message_id, index, call_id, result.is_error, took_ms, result.metadata))
        if turn.assembler.parts_from(index)[0][1] != result:
            turn.emit(PartDelta(turn.message_id, index, result))
        turn.notify_messages()

    async def _report_unknown(self, turn: Turn, call: ToolCallPart, number: int) -> None:
        unknown = ToolResultPart(call.tool_call_id, OUTCOME_UNKNOWN, is_error=True)
        # Decisions that are still stored were made inside this call, which does not run again.
        turn.decisions.unused = []
        await self._steps.report(turn.entry.id, number, unknown, forget_decisions(turn.entry.id))
        turn.emit_part(unknown)


class ToolRunner:
    """Runs one tool call: permission, hooks, the tool itself, its time and output limits."""

    def __init__(
        self,
        registry: PluginRegistry,
        permissions: Permissions,
        approvals: Approvals,
        activity: ActivityBus,
        output_bytes: int,
    ) -> None:
        self._registry = registry
        self._permissions = permissions
        self._approvals = approvals
        self._activity = activity
        self._output_bytes = output_bytes

    async def run(
        self, turn: Turn, tools: Mapping[str, Tool], call: ToolCallPart, services: CallServices
    ) -> tuple[ToolOutput, int]:
        """Run a call. Returns its output and its duration in milliseconds."""
        self._activity.emit("tool_start", call.tool_name, turn.session.id)
        begun, outcome = time.monotonic(), "aborted"
        try:
            output = sound(await self._call(turn, tools, call, services))
            redactor = turn.session.redactor
            title = output.title and redactor.redact_text(output.title)
            output = msgspec.structs.replace(
                output, content=redactor.redact_text(output.content), title=title
            )
            outcome = "failed" if output.is_error else "ok"
        finally:
            self._activity.emit("tool_end", call.tool_name, outcome)
        return output, round((time.monotonic() - begun) * 1000)

    async def may(self, turn: Turn, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether the model's backend may run a tool of its own; without a rule, a person is asked.

        Rules match against its arguments as JSON. "Always" grants exactly this call.
        """
        foreign = Tool(
            definition=ToolDefinition(tool, "", {}),
            execute=_run_by_backend,
            match_key=lambda given: to_json(dict(sorted(given.items()))).decode(),
        )
        action = self._permissions.decide(foreign, arguments, turn.ctx.role, ask_by_default=True)
        if action != "ask":
            return action == "allow"
        outcome = await self._approvals.ask(turn, foreign, arguments)
        if outcome in ("nobody", "unshown"):
            log.warning(
                "refused a tool of a backend", session=turn.session.id, reason=_refusal(turn, tool, outcome)
            )
        return outcome in ("once", "always")

    async def _call(
        self, turn: Turn, tools: Mapping[str, Tool], part: ToolCallPart, services: CallServices
    ) -> ToolOutput:
        hooks = self._registry.get_hooks()
        original = ToolCall(part.tool_call_id, part.tool_name, part.arguments)
        if part.invalid_arguments is not None:
            content = await hooks.after_tool_exec(original, "Error: Invalid JSON arguments", turn.ctx)
            return _shown(ToolOutput(content, is_error=True), services.show)
        call = await self._prepared(turn, tools, original)
        if isinstance(call, ToolBlock):
            content = await hooks.after_tool_exec(original, call.content, turn.ctx)
            return _shown(ToolOutput(content, is_error=call.is_error), services.show)
        tool = tools[call.name]
        await services.begin(tool)
        progress = _Progress(services.show, self._output_bytes)
        output = await self._execute(turn, tool, call, progress, services.nest)
        changed = await hooks.after_tool_exec(call, output.content, turn.ctx)
        output = msgspec.structs.replace(output, content=_truncated(changed, self._output_bytes))
        # After progress, the whole result replaces it at the end instead of being appended to it.
        if output.content and not progress.shown:
            services.show(output.content)
        return output

    async def _prepared(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        """Return the call as it will run, or the reason not to run it."""
        allowed = await self._permitted(turn, tools, call)
        if isinstance(allowed, ToolBlock):
            return allowed
        rewritten = await self._registry.get_hooks().before_tool_exec(call, turn.ctx)
        if isinstance(rewritten, ToolBlock) or rewritten == call:
            return rewritten
        # The permission covered the original arguments only: a rewritten call needs one of its own.
        return await self._permitted(turn, tools, rewritten)

    async def _permitted(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        tool = tools.get(call.name)
        if tool is None:
            return ToolBlock(f"Error: Unknown tool: {call.name}")
        built_in = self._registry.is_built_in(tool)
        action = self._permissions.decide(tool, call.arguments, turn.ctx.role, built_in=built_in)
        if action == "allow":
            return call
        if action == "deny":
            return ToolBlock(f"Error: Tool '{call.name}' denied by the permissions.")
        outcome = await self._approvals.ask(turn, tool, call.arguments, recorded=True)
        if outcome in ("once", "always"):
            return call
        return ToolBlock(f"Error: {_refusal(turn, call.name, outcome)}")

    async def _execute(
        self, turn: Turn, tool: Tool, call: ToolCall, progress: _Progress, nest: RunNested
    ) -> ToolOutput:
        context = ToolContext(
            session=turn.session.id,
            message_id=turn.message_id,
            call_id=call.id,
            key=make_key(turn.entry.id, call.id),
            user=turn.sender.id,
            progress=progress.add,
            run_nested=nest,
        )
        try:
            limit = self._registry.limit_of(tool)
            return as_output(await limit.call(tool.execute, call.arguments, context))
        except ToolError as error:
            return ToolOutput(f"Error: {error}", is_error=True)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a tool failed", tool=call.name, session=turn.session.id)
            return ToolOutput(f"Error: {type(error).__name__}: {error}", is_error=True)


class _Progress:
    """Progress output of a running tool, up to a limit in bytes. The tool's result is separate from it."""

    def __init__(self, show: Show, limit: int) -> None:
        self._show = show
        self._remaining = limit
        self.shown = False

    def add(self, text: str) -> None:
        """Show more progress; text beyond the limit is dropped."""
        if not text or self._remaining <= 0:
            return
        text = sound(text)
        self.shown = True
        self._show(_truncated(text, self._remaining))
        self._remaining -= len(text.encode())


def _refusal(turn: Turn, tool: str, outcome: Outcome) -> str:
    """Return why a tool may not run, and how to allow it."""
    channel, session = turn.address.channel, turn.session.id
    match outcome:
        case "nobody":
            return (
                f"Tool '{tool}' needs a person's approval, and nobody can be asked here. "
                f"The setting {rule_to_add(tool)} lets it run without asking."
            )
        case "unshown":
            return (
                f"Tool '{tool}' needs a person's approval, and {channel!r} cannot show the whole question. "
                f"Open the session in the web chat or with `trunkline chat {session}`, and ask again there."
            )
        case "timeout":
            return f"Tool '{tool}': approval timed out."
        case "once" | "always" | "deny":
            return f"Tool '{tool}' denied by user."
        case _:
            assert_never(outcome)


async def _run_by_backend(arguments: Mapping[str, Any], context: ToolContext) -> str:
    raise ToolError("its backend runs this tool itself")


def _truncated(text: str, limit: int) -> str:
    """Return the text, cut to ``limit`` bytes and with a line that says so if it is longer."""
    # A code point takes at most four bytes, so that most texts are not encoded only to be measured.
    if len(text) * 4 <= limit:
        return text
    whole = sound(text).encode()
    return text if len(whole) <= limit else whole[:limit].decode(errors="ignore") + "\n[output cut here]"


def _shown(output: ToolOutput, show: Show) -> ToolOutput:
    show(output.content)
    return output


def _display_hints(tool: Tool | None) -> DisplayHints | None:
    """Return how to show a tool's result, if the tool gives more than a verb, which is the title already."""
    return tool.display if tool is not None and (tool.display.kind or tool.display.fields) else None
