"""Tool calls: ``ToolCalls`` records and shows the calls of a turn, ``ToolRunner`` runs a single one.

The order for one call: permission (``permission.ask``, a person's approval), ``tool.execute.before``,
``before_tool_exec`` hooks, the durable record that the tool begins, the tool, ``after_tool_exec`` hooks,
``tool.execute.after``, the durable result. Failures become results, so that the model can react to them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, assert_never

import msgspec
import structlog
from msgspec import Struct

from gateway.access.approvals import Approvals
from gateway.access.permissions import Permissions, rule_to_add, withheld_by
from gateway.access.rooms import Rooms
from gateway.contract.deltas import PartDelta, ToolResultStart
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
    is_untrusted,
    sound,
    to_json,
)
from gateway.contract.plugin import ToolBlock, ToolCall
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import (
    CallTool,
    Changing,
    RunNested,
    Tool,
    ToolContext,
    ToolOutput,
    Watching,
    as_output,
)
from gateway.events.bus import ActivityBus
from gateway.extensions.deadlines import paused
from gateway.files import ToolOutputs
from gateway.pipeline.decisions import CallDecisions, Decision
from gateway.pipeline.nested import MOST_AT_ONCE
from gateway.session import Turn, calling
from gateway.store.steps import Steps, make_key

log = structlog.get_logger("trunkline.tools")

Show = Callable[[str], None]

OUTCOME_UNKNOWN = (
    "Error: the gateway stopped while this tool was running. Its outcome is unknown and it was not run again."
)

_INVALID = ToolBlock("Error: Invalid JSON arguments")
_UNTRUSTED = "This conversation holds text of people who may not use the bot."
_OTHERS = "This conversation holds content from outside, such as a web page, which may instruct the bot."
_MOST_REPEATS = 2
"""Number of identical calls in a row that a model may make before a user is asked."""
_MOST_LISTED = 20


class _BegunCall:
    """A call whose result has its place in the answer; its output, once there is one."""

    def __init__(self, call: ToolCallPart, number: int, start: ToolResultStart) -> None:
        self.call = call
        self.number = number
        self.start = start
        self.output: ToolOutput | None = None


class CallServices(Struct, frozen=True):
    """Functions that a turn provides to one of its tool calls."""

    begin: Callable[[Tool], Awaitable[None]]
    """Records that the tool is about to run; the tool runs after it returns."""
    show: Show
    """Shows progress of the tool, or its output."""
    nest: RunNested
    """Starts a nested run."""
    call: CallTool
    """Runs another tool."""


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
        """Run calls in order; those next to each other whose tools are ``concurrent`` at the same time.

        ``parts`` is the whole output of the model that contains them. Returns the outputs in call order.
        """
        by_name = {tool.name: tool for tool in reversed(tools)}
        step = turn.steps_written
        if turn.durable:
            # Counted before the commit: /stop may cancel the wait for it, and the answer's commit deletes
            # the steps only if this count says that there are some.
            turn.steps_written = step + 1 + len(calls)
            await self._steps.record(turn.entry.id, step, parts, calls, *turn.entry.trail.ops())
        outputs: list[ToolOutput] = []
        begun: list[_BegunCall] = []
        for number, call in enumerate(calls, step + 1):
            outputs += await self._add(turn, by_name, begun, call, number)
        return [*outputs, *await self._finish(turn, by_name, begun)]

    async def resume(self, turn: Turn, tools: Sequence[Tool]) -> None:
        """Restore the steps of an attempt that a crash ended, and run the calls that it had not begun."""
        calls: dict[str, ToolCallPart] = {}
        by_name = {tool.name: tool for tool in reversed(tools)}
        begun: list[_BegunCall] = []
        for step in await self._steps.load(turn.entry.id):
            turn.steps_written = step.number + 1
            for part in step.parts:
                turn.emit_part(part)
                turn.session.has_read_others |= is_untrusted(part)
                if isinstance(part, ToolCallPart):
                    calls[make_key(turn.entry.id, part.tool_call_id)] = part
            if step.state == "called":
                await self._add(turn, by_name, begun, calls[step.key], step.number)
            elif step.state == "intent":
                # The tool may have had its effect before the crash: running it again could do it twice.
                await self._report_unknown(turn, calls[step.key], step.number)
        await self._finish(turn, by_name, begun)

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

    async def _add(
        self,
        turn: Turn,
        tools: Mapping[str, Tool],
        begun: list[_BegunCall],
        call: ToolCallPart,
        number: int,
    ) -> list[ToolOutput]:
        """Begin a call: add a concurrent one to ``begun``; finish those, then run any other one alone.

        Returns the outputs of the calls that ended.
        """
        tool = _find_tool(tools, call.tool_name)
        alone = tool is None or not tool.concurrent
        outputs = await self._finish(turn, tools, begun) if alone else []
        title = tool.display.verb if tool is not None else None
        # The results get their places here, in the order of the calls, whichever of them ends first.
        start = turn.writer.result(call.tool_call_id, title, _display_hints(tool))
        turn.emit(start)
        begun.append(_BegunCall(call, number, start))
        return [*outputs, *await self._finish(turn, tools, begun)] if alone else []

    async def _finish(
        self, turn: Turn, tools: Mapping[str, Tool], begun: list[_BegunCall]
    ) -> list[ToolOutput]:
        """Run the begun calls at the same time, and clear the list. Returns their outputs in order."""
        calls, slots = begun.copy(), asyncio.Semaphore(MOST_AT_ONCE)
        begun.clear()

        async def run(call: _BegunCall) -> None:
            async with slots:
                call.output = await self._run(turn, tools, call)

        try:
            if len(calls) == 1:
                await run(calls[0])
            else:
                async with asyncio.TaskGroup() as tasks:
                    for call in calls:
                        tasks.create_task(run(call))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            for call in calls:
                if call.output is None:
                    self._show_aborted(turn, call)
        if calls:
            turn.notify_messages()
        return [call.output for call in calls if call.output is not None]

    async def _run(self, turn: Turn, tools: Mapping[str, Tool], begun: _BegunCall) -> ToolOutput:
        call, number, start = begun.call, begun.number, begun.start
        calling.set(make_key(turn.entry.id, call.tool_call_id))

        def show(text: str) -> None:
            turn.emit(ResultDelta(turn.message_id, start.part_index, call.tool_call_id, text))

        async def begin(tool: Tool) -> None:
            # An idempotent tool needs no intent: after a crash it is simply run again.
            if turn.durable and not tool.idempotent:
                used = self._runner.approvals.used(turn)
                await self._steps.intend(
                    turn.entry.id, number, call.tool_call_id, *used, *turn.entry.trail.ops()
                )

        nest = self._nest(turn, call.tool_call_id)
        services = CallServices(begin, show, nest, self._inner_calls(turn, tools, call, nest.sessions))
        output, took_ms = await self._runner.run(turn, tools, call, services)
        metadata = msgspec.structs.replace(
            output.metadata or ResultMetadata(),
            duration_ms=took_ms,
            untrusted=turn.session.has_read_others,
            changed_files=_count_changes(turn, call),
            sessions=tuple(nest.sessions),
        )
        result = ToolResultPart(
            call.tool_call_id,
            output.content,
            output.title or start.title,
            metadata,
            output.attachments,
            is_error=output.is_error,
            display=start.display,
        )
        if turn.durable:
            used = self._runner.approvals.used(turn)
            await self._steps.report(turn.entry.id, number, result, *used, *turn.entry.trail.ops())
        self._show_result(turn, start.part_index, result, took_ms)
        return output

    def _show_aborted(self, turn: Turn, begun: _BegunCall) -> None:
        """Replace the progress that readers saw: a model must not mistake it for the result."""
        call, start = begun.call, begun.start
        aborted = ToolResultPart(
            call.tool_call_id,
            ABORTED,
            start.title,
            ResultMetadata(changed_files=_count_changes(turn, call)),
            is_error=True,
            display=start.display,
        )
        turn.emit(PartDelta(turn.message_id, start.part_index, aborted))

    def _inner_calls(
        self, turn: Turn, tools: Mapping[str, Tool], outer: ToolCallPart, sessions: list[str]
    ) -> CallTool:
        """Return the function with which a tool runs other tools; adds their nested runs to ``sessions``."""
        numbers = itertools.count(1)

        async def begin(_tool: Tool) -> None:
            # The outer call's intent is recorded already: after a crash none of its calls runs again.
            pass

        async def call_tool(tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
            call = ToolCallPart(f"{outer.tool_call_id}.{next(numbers)}", tool, dict(arguments))
            nest = self._nest(turn, call.tool_call_id)
            services = CallServices(begin, _show_nothing, nest, call_tool)
            try:
                # The inner call has its own time limit.
                with paused():
                    return (await self._runner.run(turn, tools, call, services))[0]
            finally:
                sessions.extend(nest.sessions)

        return call_tool

    def _show_result(self, turn: Turn, index: int, result: ToolResultPart, took_ms: int) -> None:
        """Show the end of a tool call, and its whole result where that differs from its progress."""
        call_id = result.tool_call_id
        turn.emit(ResultEnd(turn.message_id, index, call_id, result.is_error, took_ms, result.metadata))
        if turn.assembler.parts_from(index)[0][1] != result:
            turn.emit(PartDelta(turn.message_id, index, result))

    async def _report_unknown(self, turn: Turn, call: ToolCallPart, number: int) -> None:
        unknown = ToolResultPart(call.tool_call_id, OUTCOME_UNKNOWN, is_error=True)
        # Questions that are still stored were asked inside this call, which does not run again.
        await self._steps.report(
            turn.entry.id, number, unknown, self._runner.approvals.questions.forget(turn.entry.id)
        )
        turn.emit_part(unknown)


@dataclass(kw_only=True, eq=False)
class ToolRunner:
    """Runs one tool call: permission, hooks, the tool itself, its time and output limits."""

    permissions: Permissions
    approvals: Approvals
    rooms: Rooms
    activity: ActivityBus
    outputs: ToolOutputs
    changing: Callable[[Turn], Changing]
    watching: Callable[[Turn], Watching]

    def __post_init__(self) -> None:
        self._decisions = CallDecisions(self.approvals)

    async def run(
        self, turn: Turn, tools: Mapping[str, Tool], call: ToolCallPart, services: CallServices
    ) -> tuple[ToolOutput, int]:
        """Run a call. Returns its output and its duration in milliseconds."""
        self.activity.emit("tool_start", call.tool_name, turn.root.session.id)
        begun, outcome, trail = time.monotonic(), "aborted", turn.entry.trail
        try:
            output = sound(await self._call(turn, tools, call, services))
            redactor = turn.session.redactor
            title = output.title and redactor.redact_text(output.title)
            output = msgspec.structs.replace(
                output, content=redactor.redact_text(output.content), title=title
            )
            turn.session.has_read_others |= output.untrusted
            outcome = "failed" if output.is_error else "ok"
        finally:
            self.activity.emit("tool_end", call.tool_name, outcome)
            trail.tool(call.tool_name, call.tool_call_id, outcome, time.monotonic() - begun)
        return output, round((time.monotonic() - begun) * 1000)

    async def may_run(self, turn: Turn, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether the model's backend may run one of its tools; without a rule, a person is asked.

        Rules match against its arguments as JSON. "Always" grants exactly this call.
        """
        foreign = Tool(
            definition=ToolDefinition(tool, "", {}),
            execute=_run_by_backend,
            match_key=lambda given: to_json(dict(sorted(given.items()))).decode(),
        )
        role = turn.ctx.role
        action, rule, by_rule = self.permissions.judge(foreign, arguments, role, ask_by_default=True)
        room = self.rooms.of(turn.entry.channel, turn.entry.inbound)
        allowed = turn.overrides.narrow_tools(room.tools)
        judge = partial(turn.entry.trail.judge_backend, tool, arguments)
        if action == "deny" or turn.is_read_only or (allowed is not None and tool not in allowed):
            judge(rule if action == "deny" else withheld_by(turn, tool, room), refused=True)
            return False
        reason = _reason_to_ask(turn, foreign, built_in=False)
        if action == "allow" and not reason:
            judge(rule, refused=False)
            return True
        decision = await self._decisions.approve(turn, foreign, arguments, reason=reason, by_rule=by_rule)
        if decision.outcome in ("nobody", "unshown"):
            why = _refusal(turn, tool, decision, reason)
            log.warning("refused a tool of a backend", session=turn.session.id, reason=why)
        judge(decision.decided_by, refused=not decision.allows)
        return decision.allows

    async def _call(
        self, turn: Turn, tools: Mapping[str, Tool], part: ToolCallPart, services: CallServices
    ) -> ToolOutput:
        named = _find_tool(tools, part.tool_name)
        name = part.tool_name if named is None else named.name
        original = ToolCall(part.tool_call_id, name, part.arguments)
        call = _INVALID if part.invalid_arguments is not None else await self._prepared(turn, tools, original)
        if isinstance(call, ToolBlock):
            content = await turn.plugins.hooks.after_tool_exec(original, call.content, turn.ctx)
            services.show(content)
            return ToolOutput(content, is_error=call.is_error)
        tool = tools[call.name]
        await services.begin(tool)
        progress = _Progress(services.show, self.outputs.most_bytes)
        begun = time.monotonic()
        output = await self._execute(turn, tool, call, progress, services)
        if turn.aborted:  # the tool hid the cancellation
            raise asyncio.CancelledError
        took_ms = round((time.monotonic() - begun) * 1000)
        changed = await turn.plugins.hooks.after_tool_exec(call, output.content, turn.ctx)
        session = turn.session
        shortened = await self.outputs.shorten(changed, session.id, session.redactor.redact_text)
        output = msgspec.structs.replace(output, content=shortened)
        self._decisions.finished(turn, call, output, took_ms)
        # After progress, the whole result replaces it at the end instead of being appended to it.
        if output.content and not progress.shown:
            services.show(output.content)
        return output

    async def _prepared(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        """Return the call as it will run, or the reason not to run it."""
        allowed = await self._admitted(turn, tools, call)
        if isinstance(allowed, ToolBlock):
            return allowed
        rewritten = await turn.plugins.hooks.before_tool_exec(call, turn.ctx)
        if isinstance(rewritten, ToolBlock) or rewritten == call:
            return rewritten
        # Permission and guards covered the original arguments only: a rewritten call needs its own.
        return await self._admitted(turn, tools, rewritten)

    async def _admitted(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        """Return a call that is permitted and that no plugin blocks, or the reason not to run it."""
        allowed = await self._permitted(turn, tools, call)
        if isinstance(allowed, ToolBlock):
            return allowed
        return await self._decisions.start(turn, call) or call

    async def _permitted(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        tool = tools.get(call.name)
        if tool is None:
            if any(one.name == call.name for one in turn.plugins.get_tools()):
                by = withheld_by(turn, call.name, self.rooms.of(turn.entry.channel, turn.entry.inbound))
                turn.entry.trail.judge(call.id, by, refused=True)
            return ToolBlock(_unknown_tool(call.name, tools))
        built_in, role = turn.plugins.is_built_in(tool), turn.ctx.role
        by_default = turn.plugins.asks_by_default(tool)
        action, rule, by_rule = self.permissions.judge(
            tool, call.arguments, role, built_in=built_in, ask_by_default=by_default
        )
        turn.entry.trail.judge(call.id, rule, refused=action == "deny")
        if action == "deny":
            return ToolBlock(f"Error: Tool '{call.name}' denied by the permissions.")
        reason = _reason_to_ask(turn, tool, call.id, built_in=built_in)
        try:
            ask = tool.asks(call.arguments, role) if tool.asks is not None else None
        except ToolError as error:
            return ToolBlock(f"Error: {error}")
        except Exception:
            log.exception("asks of a tool failed", tool=tool.name, session=turn.session.id)
            return ToolBlock(f"Error: Tool '{call.name}' could not check this call; it was not run.")
        if action == "allow" and not reason and ask is None:
            return call
        # An "always" must not answer the question that another reason demands.
        always = ask.always if ask is not None and not reason else None
        reason = " ".join(filter(None, (reason, ask and ask.reason)))
        decision = await self._decisions.approve(
            turn,
            tool,
            call.arguments,
            recorded=True,
            reason=reason,
            always=always,
            by_rule=by_rule,
        )
        by, asked_by = decision.decided_by, rule if action == "ask" else ""
        turn.entry.trail.judge(call.id, by, refused=not decision.allows, asked_by=asked_by)
        return call if decision.allows else ToolBlock(f"Error: {_refusal(turn, call.name, decision, reason)}")

    async def _execute(
        self, turn: Turn, tool: Tool, call: ToolCall, progress: _Progress, services: CallServices
    ) -> ToolOutput:
        context = ToolContext(
            session=turn.session.id,
            message_id=turn.message_id,
            call_id=call.id,
            key=make_key(turn.entry.id, call.id),
            user=turn.sender.id,
            progress=progress.add,
            run_nested=services.nest,
            ask=self.approvals.asker(turn, f"tool:{tool.name}"),
            call_tool=services.call,
            changing=self.changing(turn),
            watching=self.watching(turn),
        )
        try:
            return as_output(await turn.plugins.limit_of(tool).call(tool.execute, call.arguments, context))
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


def _reason_to_ask(turn: Turn, tool: Tool, call_id: str = "", *, built_in: bool) -> str:
    """Return why a call must be approved although a rule or grant allows it; "" if that is not needed.

    Text of people who may not use the bot, and content that tools read elsewhere, may instruct the model;
    built-in tools that only read stay free, unless those people would see private data. A model that repeats
    the same call may be in a loop.
    """
    free = built_in and tool.read_only
    if turn.is_untrusted and not (free and tool.asks is None):
        return _UNTRUSTED
    if turn.holds_others_content and not free:
        return _OTHERS
    count = _identical_calls(turn, call_id)
    return f"The model has made this call {count} times in a row." if count > _MOST_REPEATS else ""


def _identical_calls(turn: Turn, call_id: str) -> int:
    """Return how many times in a row the turn's model has made a call, with this one."""
    # Counted from the parts, so that a turn repeated after a crash counts the same.
    calls = [part for _, part in turn.assembler.parts_from(0) if isinstance(part, ToolCallPart)]
    until = next((n for n, part in enumerate(calls, 1) if part.tool_call_id == call_id), 0)
    made = [(part.tool_name, part.arguments) for part in reversed(calls[:until])]
    return next((n for n, call in enumerate(made) if call != made[0]), until)


def _find_tool(tools: Mapping[str, Tool], name: str) -> Tool | None:
    """Return a tool by its name; a model may write it in another case if that leaves only one tool."""
    if name in tools:
        return tools[name]
    found = [tool for other, tool in tools.items() if other.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else None


def _unknown_tool(name: str, tools: Mapping[str, Tool]) -> str:
    """Return the result of a call of an unknown tool: the names that are similar, or all of them."""
    near = get_close_matches(name, tools, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    if not near:
        listed = sorted(tools)[:_MOST_LISTED]
        hint = f" The tools are {', '.join(listed)}." if listed else " There are no tools."
    return f"Error: Unknown tool: {name}.{hint}"


def _refusal(turn: Turn, tool: str, decision: Decision, reason: str) -> str:
    """Return why a tool may not run, and how to allow it. ``reason`` is why rules and grants do not."""
    channel, session = turn.address.channel, turn.session.id
    if decision.plugin:
        return f"Tool '{tool}' denied by the plugin '{decision.plugin}'."
    match decision.outcome:
        case "nobody" if reason:
            return f"Tool '{tool}' needs a person's approval, and no user can be asked here. {reason}"
        case "nobody":
            return (
                f"Tool '{tool}' needs a person's approval, and no user can be asked here. "
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
            assert_never(decision.outcome)


async def _run_by_backend(arguments: Mapping[str, Any], context: ToolContext) -> str:
    raise ToolError("its backend runs this tool itself")


def _truncated(text: str, limit: int) -> str:
    """Return the text, cut to ``limit`` bytes and with a line that says so if it is longer."""
    # A code point takes at most four bytes, so that most texts are not encoded only to be measured.
    if len(text) * 4 <= limit:
        return text
    whole = sound(text).encode()
    return text if len(whole) <= limit else whole[:limit].decode(errors="ignore") + "\n[output cut here]"


def _count_changes(turn: Turn, call: ToolCallPart) -> int:
    """Return the number of files that a call changed."""
    return len(set(turn.changed_files.pop(make_key(turn.entry.id, call.tool_call_id), ())))


def _show_nothing(text: str) -> None:
    """Drop the output of an inner call: its tool decides what to show."""


def _display_hints(tool: Tool | None) -> DisplayHints | None:
    """Return how to show a tool's result, if the tool gives more than a verb, which is the title already."""
    return tool.display if tool is not None and (tool.display.kind or tool.display.fields) else None
