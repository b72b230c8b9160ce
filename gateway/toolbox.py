"""Running one tool call: permission, hooks, the tool itself, its bounds. Whatever fails is a result.

The order around a call: permission (and a person's approval), ``before_tool_exec``, the word that it begins,
the tool, ``after_tool_exec``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from gateway.approvals import Approvals
from gateway.bus import ActivityBus
from gateway.errors import FAILURES, ToolError, asked_for
from gateway.messages import ToolCallPart, sound, to_json
from gateway.permissions import Permissions
from gateway.plugin import ToolBlock, ToolCall
from gateway.provider import ToolDefinition
from gateway.registry import PluginRegistry
from gateway.session import Turn
from gateway.steps import key_of
from gateway.tool import RunNested, Tool, ToolContext, ToolOutput, as_output

log = structlog.get_logger("trunkline.tools")

Show = Callable[[str], None]


class Means(Struct, frozen=True):
    """What a turn gives to a call. ``begin`` returns when its tool may run; ``show`` takes what that says."""

    begin: Callable[[Tool], Awaitable[None]]
    show: Show
    nest: RunNested


class Toolbox:
    """Runs tools for turns."""

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
        self, turn: Turn, tools: Mapping[str, Tool], call: ToolCallPart, means: Means
    ) -> tuple[ToolOutput, int]:
        """The output of a call, and how many milliseconds it took."""
        self._activity.emit("tool_start", call.tool_name, turn.session.id)
        begun, ended = time.monotonic(), "aborted"
        try:
            output = sound(await self._outcome(turn, tools, call, means))
            ended = "failed" if output.is_error else "ok"
        finally:
            self._activity.emit("tool_end", call.tool_name, ended)
        return output, round((time.monotonic() - begun) * 1000)

    async def may(self, turn: Turn, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the model's backend may run a tool of its own. Without a rule for it a person is asked.

        Rules are held against its arguments as JSON, and "always" is good for just the same call.
        """
        foreign = Tool(
            definition=ToolDefinition(tool, "", {}),
            execute=_never,
            match_key=lambda given: to_json(dict(sorted(given.items()))).decode(),
        )
        action = self._permissions.decide(foreign, arguments, turn.ctx.role, ask_by_default=True)
        if action != "ask":
            return action == "allow"
        return await self._approvals.ask(turn, foreign, "", arguments) in ("once", "always")

    async def _outcome(
        self, turn: Turn, tools: Mapping[str, Tool], part: ToolCallPart, means: Means
    ) -> ToolOutput:
        if part.invalid_arguments is not None:
            return _shown(ToolOutput("Error: Invalid JSON arguments", is_error=True), means.show)
        hooks = self._registry.get_hooks()
        original = ToolCall(part.tool_call_id, part.tool_name, part.arguments)
        call = await self._prepared(turn, tools, original)
        if isinstance(call, ToolBlock):
            content = await hooks.after_tool_exec(original, call.content, turn.ctx)
            return _shown(ToolOutput(content, is_error=call.is_error), means.show)
        tool = tools[call.name]
        await means.begin(tool)
        transcript = _Transcript(means.show, self._output_bytes)
        output = await self._execute(turn, tool, call, transcript, means.nest)
        whole = transcript.text + output.content
        changed = await hooks.after_tool_exec(call, whole, turn.ctx)
        if changed == whole:
            transcript.add(output.content)
            return msgspec.structs.replace(output, content=transcript.text)
        return msgspec.structs.replace(output, content=_cut(changed, self._output_bytes))

    async def _prepared(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        """The call as it will run, or what blocks it. What a hook rewrote has to be allowed as it is now."""
        allowed = await self._permitted(turn, tools, call)
        if isinstance(allowed, ToolBlock):
            return allowed
        rewritten = await self._registry.get_hooks().before_tool_exec(call, turn.ctx)
        if isinstance(rewritten, ToolBlock) or rewritten == call:
            return rewritten
        return await self._permitted(turn, tools, rewritten)

    async def _permitted(self, turn: Turn, tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | ToolBlock:
        tool = tools.get(call.name)
        if tool is None:
            return ToolBlock(f"Error: Unknown tool: {call.name}")
        action = self._permissions.decide(tool, call.arguments, turn.ctx.role)
        if action == "allow":
            return call
        if action == "deny":
            return ToolBlock(f"Error: Tool '{call.name}' denied by the permissions.")
        outcome = await self._approvals.ask(turn, tool, call.id, call.arguments)
        if outcome == "timeout":
            return ToolBlock(f"Error: Tool '{call.name}': approval timed out.")
        return call if outcome != "deny" else ToolBlock(f"Error: Tool '{call.name}' denied by user.")

    async def _execute(
        self, turn: Turn, tool: Tool, call: ToolCall, transcript: _Transcript, nest: RunNested
    ) -> ToolOutput:
        context = ToolContext(
            session=turn.session.id,
            message_id=turn.message_id,
            call_id=call.id,
            key=key_of(turn.entry.id, call.id),
            user=turn.sender.id,
            progress=transcript.add,
            run_nested=nest,
        )
        try:
            return as_output(await tool.execute(call.arguments, context))
        except ToolError as error:
            return ToolOutput(f"Error: {error}", is_error=True)
        except FAILURES as error:
            if asked_for(error):
                raise
            log.exception("a tool failed", tool=call.name, session=turn.session.id)
            return ToolOutput(f"Error: {type(error).__name__}: {error}", is_error=True)


class _Transcript:
    """What a tool has said so far, shown as it comes and cut at a bound."""

    def __init__(self, show: Show, limit: int) -> None:
        self._show = show
        self._room = limit
        self._said: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._said)

    def add(self, text: str) -> None:
        if not text or self._room <= 0:
            return
        text = sound(text)
        kept = _cut(text, self._room)
        self._room -= len(text.encode())
        self._said.append(kept)
        self._show(kept)


async def _never(arguments: Mapping[str, Any], context: ToolContext) -> str:
    raise ToolError("its backend runs this tool itself")


def _cut(text: str, limit: int) -> str:
    """The text, or as much of it as fits into so many bytes, with a line that says so."""
    if len(text) * 4 <= limit:
        return text
    whole = sound(text).encode()
    return text if len(whole) <= limit else whole[:limit].decode(errors="ignore") + "\n[output cut here]"


def _shown(output: ToolOutput, show: Show) -> ToolOutput:
    show(output.content)
    return output
