"""The agent: asks the model, runs the tools it asks for, and asks again until it has answered.

It knows no channel and no vendor. Everything it does is told to the turn as deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

from gateway.asking import Asking
from gateway.bus import ActivityBus
from gateway.calls import Calls
from gateway.deltas import StopReason
from gateway.errors import (
    FAILURES,
    PluginError,
    ProviderError,
    TrunklineError,
    asked_for,
)
from gateway.events import TurnEndEvent
from gateway.inbox import Entry
from gateway.loops import follow, result_of
from gateway.messages import (
    ErrorMetadata,
    ErrorPart,
    Message,
    Part,
    ToolCallPart,
    ToolResultPart,
)
from gateway.nested import Nested
from gateway.plugin import AgentLoop, LoopRun, ToolCall, TurnResult
from gateway.registry import PluginRegistry
from gateway.routing import Agents, Models, Profile, Route
from gateway.session import Brief, Session, Turn
from gateway.steps import Steps
from gateway.tool import RunNested, Tool, ToolOutput
from gateway.toolbox import Toolbox

log = structlog.get_logger("trunkline.agent")


class Generation(msgspec.Struct, frozen=True):
    """How turns are run: settings of the gateway, the same for every agent."""

    model: Callable[[], str]
    max_calls: int = 50
    steer: bool = False


class Agent:
    """Runs turns."""

    def __init__(
        self,
        registry: PluginRegistry,
        models: Models,
        agents: Agents,
        toolbox: Toolbox,
        steps: Steps,
        asking: Asking,
        activity: ActivityBus,
        generation: Generation,
    ) -> None:
        self._registry = registry
        self._models = models
        self._agents = agents
        self._asking = asking
        self._calls = Calls(toolbox, steps, self._nest)
        self._activity = activity
        self._generation = generation

    def chosen(self, session: Session, entry: Entry) -> str:
        """The agent that answers a message: the one it asks for in place of a model, or the session's."""
        asked = entry.inbound.model
        return asked if asked in self._agents.all else self._agents.chosen(session.row.agent, entry.channel)

    async def run(self, turn: Turn) -> StopReason:
        """Answer a turn's message. An abort or an error ends it as ``cancelled``, with what it has so far."""
        self._activity.emit("agent_start", turn.ctx.agent, turn.session.id)
        try:
            return await turn.abortable(self._answer(turn)) or "cancelled"
        except TrunklineError as error:
            log.warning("a turn failed", error=error.name, reason=str(error), session=turn.session.id)
            turn.emit_part(error_part(error))
            return "cancelled"
        finally:
            reason = "aborted" if turn.aborted else "complete"
            await self._registry.get_hooks().after_agent_run(reason, turn.ctx)
            self._activity.emit("agent_end", turn.ctx.agent, reason)

    async def _answer(self, turn: Turn) -> StopReason:
        profile = self._agents.get(turn.agent)
        if not turn.depth:
            turn.brief = Brief(tools=profile.tools)
        route = await self._models.resolve(self._wanted(turn, profile))
        prompt = await self._system_prompt(turn)
        if turn.entry.attempts > 1 or turn.entry.recovered:
            await self._calls.resume(turn, await self._tools(turn))
        strategy = self._registry.get_agent_loop()
        if strategy is not None and not turn.depth:
            return await self._custom(turn, strategy, route, prompt)
        for _ in range(self._generation.max_calls):
            tools = await self._tools(turn)
            first = turn.writer.next_index
            route, stop = await self._asking.ask(turn, route, prompt, tools)
            calls = open_calls(turn, first)
            if not calls:
                return stop
            await self._calls.run(turn, tools, _parts(turn, first), calls)
            turn.tell(TurnEndEvent())
            if self._generation.steer and turn.steered:
                return "tool_use"
        raise TrunklineError(f"stopped after {self._generation.max_calls} calls of the model in one turn")

    def _wanted(self, turn: Turn, profile: Profile) -> str:
        """The name of the model for a turn. Who asks for an agent asks for its model, too."""
        asked = turn.entry.inbound.model
        picked = None if asked in self._agents.all else asked or turn.session.row.model
        return turn.brief.model or picked or profile.model or self._generation.model()

    async def _tools(self, turn: Turn) -> tuple[Tool, ...]:
        """The tools for the next call: what the hooks let through, of that what the turn may use."""
        tools = await self._registry.get_filtered_tools(turn.ctx)
        allowed = turn.brief.tools
        return tools if allowed is None else tuple(tool for tool in tools if tool.name in allowed)

    async def _system_prompt(self, turn: Turn) -> str:
        own = turn.brief.system_prompt
        first = self._agents.get(turn.agent).system_prompt if own is None else own
        prompts = (first, *await self._registry.get_system_prompts())
        prompt = "\n\n".join(prompt for prompt in prompts if prompt)
        return await self._registry.apply_system_prompt_transforms(prompt, turn.ctx)

    async def _custom(self, turn: Turn, strategy: AgentLoop, route: Route, prompt: str) -> StopReason:
        """Let a plugin's loop answer; its cumulative texts become deltas here."""
        tools = await self._tools(turn)
        earlier = {part.tool_call_id: part for part in _parts(turn) if isinstance(part, ToolResultPart)}

        async def call_model(messages: Sequence[Message]) -> TurnResult:
            first, before = turn.writer.next_index, turn.tally.tokens
            await self._asking.ask(turn, route, prompt, tools, messages)
            used, cached = (total - past for total, past in zip(turn.tally.tokens, before, strict=True))
            return result_of(turn, first, used, cached)

        async def call_tool(call: ToolCall) -> ToolOutput:
            done = earlier.pop(call.id, None)
            if done is not None:
                return ToolOutput(done.output, done.is_error, done.title, done.metadata, done.attachments)
            part = ToolCallPart(call.id, call.name, dict(call.arguments))
            if part not in _parts(turn):
                turn.emit_part(part)
            return (await self._calls.run(turn, tools, [part], [part]))[0]

        options = self._asking.options(turn, route, prompt, tools)
        run = LoopRun(turn.transcript(), options, tools, call_model, call_tool)
        try:
            await follow(turn, strategy.run(run))
        except TrunklineError:
            raise
        except FAILURES as error:
            if asked_for(error):
                raise
            raise PluginError(
                f"agent loop {strategy.name!r} failed: {type(error).__name__}: {error}"
            ) from error
        return "end_turn"

    def _nest(self, turn: Turn, call_id: str) -> RunNested:
        return Nested(self.run, self._agents, self._activity, turn, call_id)


def open_calls(turn: Turn, first: int) -> list[ToolCallPart]:
    """The calls from an index on that have no result; the others its backend has run itself."""
    parts = _parts(turn, first)
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    return [part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id not in answered]


def _parts(turn: Turn, first: int = 0) -> list[Part]:
    return [part for _, part in turn.assembler.parts_from(first)]


def error_part(error: TrunklineError) -> ErrorPart:
    """An error as a part of a message."""
    code = str(error.upstream_status) if isinstance(error, ProviderError) and error.upstream_status else None
    return ErrorPart(error.name, str(error), ErrorMetadata(code=code, retryable=error.retryable))
