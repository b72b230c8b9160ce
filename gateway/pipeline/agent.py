"""The agent: calls the model, runs the tools it asks for, and repeats until the model has answered.

It knows no channel and no vendor. All its output goes to the turn as deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from gateway.access.rooms import Room, Rooms
from gateway.contract.deltas import StopReason
from gateway.contract.errors import (
    CATCHABLE,
    PluginError,
    ProviderError,
    TrunklineError,
    is_cancellation_requested,
    sentence,
)
from gateway.contract.events import TurnEndEvent
from gateway.contract.messages import ErrorMetadata, ErrorPart, Message, Part, ToolCallPart, ToolResultPart
from gateway.contract.plugin import AgentLoop, LoopRun, ToolCall, TurnResult
from gateway.contract.tool import Tool, ToolOutput
from gateway.events.bus import ActivityBus
from gateway.events.types import AgentStarted
from gateway.models import Agents, Models, Profile, Route
from gateway.pipeline.agent_loop import follow, turn_result
from gateway.pipeline.model_call import ModelCaller
from gateway.pipeline.nested import MAX_DEPTH, NestedRuns, report_agent, report_end
from gateway.pipeline.tools import ToolCalls, ToolRunner
from gateway.session import RunOverrides, Session, Sessions, Turn
from gateway.store.inbox import Entry
from gateway.store.steps import Steps

log = structlog.get_logger("trunkline.agent")

ENTER_PLAN_MODE, EXIT_PLAN_MODE = "enter_plan_mode", "exit_plan_mode"
"""Tools that are offered outside of plan mode, and in it."""
TASK = "task"
"""The tool for nested runs, offered where a run can do something."""
PLAN_INSTRUCTION = (
    "Plan mode: you can read and search, and change nothing. Find out what is needed, ask the user about "
    "open decisions, and make a plan: what will be changed, where, in which order, and how it is checked. "
    "When the plan is complete, call exit_plan_mode with it; the user decides."
)
_READ_ONLY = "You can read and search, and change nothing."


class AgentDefaults(msgspec.Struct, frozen=True):
    """Settings that apply to the turns of every agent."""

    model: Callable[[], str]
    """Returns the model for turns that name none. A function, because a login may change it."""
    max_calls: int = 50
    """Maximum number of model calls in one turn."""
    steer: bool = False
    """End a turn after its current tool calls when the user has sent another message."""


@dataclass(kw_only=True, eq=False)
class Agent:
    """Runs turns: model calls and tool calls in alternation."""

    sessions: Sessions
    models: Models
    agents: Agents
    tool_runner: ToolRunner
    steps: Steps
    model_caller: ModelCaller
    activity: ActivityBus
    defaults: AgentDefaults
    rooms: Rooms

    def __post_init__(self) -> None:
        self._nested = NestedRuns(self.run, self.sessions, self.agents, self.activity)
        self._tool_calls = ToolCalls(self.tool_runner, self.steps, self._nested.of)

    def agent_for(self, session: Session, entry: Entry) -> str:
        """Return the name of the agent for a message: the one it names, the session's, or its room's."""
        # /v1 clients can only name a model, so an agent's name is accepted there, too.
        asked = entry.inbound.agent or entry.inbound.model
        if asked in self.agents.all:
            return asked
        return self.agents.choose(session.row.agent, entry.channel, entry.inbound.address.chat)

    async def run(self, turn: Turn) -> StopReason:
        """Answer a turn's message. An abort or an error ends it as ``cancelled``, with its output so far."""
        self.activity.emit("agent_start", turn.ctx.agent, turn.root.session.id)
        stop: StopReason = "cancelled"
        try:
            stop = await self._run_to_end(turn)
            await self._nested.close(turn, self._tool_calls.recall)
            return stop
        finally:
            reason = "aborted" if turn.aborted else "complete"
            report_end(turn, stop)
            await turn.plugins.hooks.after_agent_run(reason, turn.ctx)
            self.activity.emit("agent_end", turn.ctx.agent, reason)

    async def end_runs(self, turn: Turn) -> None:
        """End the nested runs that an earlier attempt left of a turn that is now answered without them."""
        await self._nested.close(turn, self._tool_calls.recall)

    async def _run_to_end(self, turn: Turn) -> StopReason:
        try:
            stop = await turn.run_abortable(self._answer(turn))
            if stop is None:
                await self._tool_calls.recall(turn)
            return stop or "cancelled"
        except TrunklineError as error:
            log.warning("a turn failed", error=error.name, reason=str(error), session=turn.session.id)
            await self._tool_calls.recall(turn)
            turn.emit_part(error_part(error))
            return "cancelled"

    async def _answer(self, turn: Turn) -> StopReason:
        profile = self.agents.get(turn.agent)
        turn.plans_only = turn.plans_only or profile.mode == "plan"
        if not turn.depth:
            allowed = RunOverrides(tools=profile.tools).narrow_tools(self._room_of(turn).tools)
            turn.overrides = RunOverrides(tools=allowed)
        route = await self.models.resolve(self._model_name(turn, profile))
        turn.model = route.name
        report_agent(turn, AgentStarted)
        prompt = await self._system_prompt(turn)
        if turn.is_repeated:
            await self._tool_calls.resume(turn, await self._tools(turn))
        loop = turn.plugins.agent_loop()
        own_tools = turn.options.tools is not None
        if loop is not None and not turn.depth and not own_tools:
            return await self._run_custom_loop(turn, loop, route, prompt)
        for _ in range(self.defaults.max_calls):
            tools = await self._tools(turn)
            first = turn.writer.next_index
            route, stop = await self.model_caller.call(turn, route, prompt, tools)
            calls = _unanswered_calls(turn, first)
            if not calls or own_tools:  # a client that sent its own tools runs them itself
                return stop
            await self._tool_calls.run(turn, tools, _parts(turn, first), calls)
            turn.notify(TurnEndEvent())
            if self.defaults.steer and turn.steered:
                return "tool_use"
        raise TrunklineError(
            f"stopped after {self.defaults.max_calls} model calls in one turn (limits.max_llm_calls)"
        )

    async def compact(self, turn: Turn, instructions: str) -> str:
        """Summarize the session of a turn whose message is /compact. Returns the reply."""
        session = turn.session
        route = await self.models.resolve(self._model_name(turn, self.agents.get(turn.agent)))
        # As the session's turn, it can be stopped like an answer.
        session.turn = turn
        try:
            reply = await turn.run_abortable(self.model_caller.compact(turn, route, instructions))
        finally:
            session.turn = None
        return reply or "Stopped. The conversation is unchanged."

    def _room_of(self, turn: Turn) -> Room:
        return self.rooms.of(turn.entry.channel, turn.entry.inbound)

    def _model_name(self, turn: Turn, profile: Profile) -> str:
        """Return the name of the model for a turn. A message that names an agent uses the agent's model."""
        asked = turn.entry.inbound.model
        if asked in self.agents.all or (turn.entry.inbound.agent and not asked):
            picked = None
        else:
            picked = asked or turn.session.row.model
        return turn.overrides.model or picked or profile.model or self.defaults.model()

    async def _tools(self, turn: Turn) -> tuple[Tool, ...]:
        """Return the tools for the next model call: those allowed in the turn and by the hooks.

        Empty where the message brought its own tools.
        """
        if turn.options.tools is not None:
            return ()
        plugins = turn.plugins
        tools = await plugins.get_filtered_tools(turn.ctx)
        if turn.is_read_only:
            tools = tuple(tool for tool in tools if tool.read_only and plugins.is_built_in(tool))
        hidden = {*_hidden_mode_tools(turn, tools), *_hidden_task(turn, tools)}
        tools = tuple(tool for tool in tools if tool.name not in hidden)
        allowed = turn.overrides.tools
        return tools if allowed is None else tuple(tool for tool in tools if tool.name in allowed)

    async def _system_prompt(self, turn: Turn) -> str:
        own = turn.overrides.system_prompt
        first = self.agents.get(turn.agent).system_prompt if own is None else own
        # A nested run works on a task and does not write to the room.
        room = "" if turn.depth else self._room_of(turn).system_prompt
        mode = PLAN_INSTRUCTION if turn.session.row.mode == "plan" and not turn.depth else ""
        if turn.is_read_only and not mode:
            mode = _READ_ONLY
        prompts = (first, room, mode, *await turn.plugins.get_system_prompts())
        prompt = "\n\n".join(prompt for prompt in prompts if prompt)
        return await turn.plugins.apply_system_prompt_transforms(prompt, turn.ctx)

    async def _run_custom_loop(self, turn: Turn, loop: AgentLoop, route: Route, prompt: str) -> StopReason:
        """Run a plugin's agent loop in place of the built-in one."""
        tools = await self._tools(turn)
        # The loop starts over after a crash; calls that have a result must not run a second time.
        earlier = {part.tool_call_id: part for part in _parts(turn) if isinstance(part, ToolResultPart)}

        async def call_model(messages: Sequence[Message]) -> TurnResult:
            first, before = turn.writer.next_index, turn.usage.tokens
            await self.model_caller.call(turn, route, prompt, tools, messages)
            after = turn.usage.tokens
            used = after.input + after.output - before.input - before.output
            return turn_result(turn, first, used, after.cached - before.cached)

        async def call_tool(call: ToolCall) -> ToolOutput:
            done = earlier.pop(call.id, None)
            if done is not None:
                return ToolOutput(done.output, done.is_error, done.title, done.metadata, done.attachments)
            part = ToolCallPart(call.id, call.name, dict(call.arguments))
            made = next((p for p in _calls(_parts(turn)) if p.tool_call_id == call.id), None)
            # Arguments of the model that are not JSON are an empty object in the loop's view of its call.
            if made is not None and (made.tool_name, made.arguments) == (part.tool_name, part.arguments):
                part = made
            else:
                turn.emit_part(part)
            return (await self._tool_calls.run(turn, tools, [part], [part]))[0]

        options = self.model_caller.options(turn, route, prompt, tools)
        run = LoopRun(turn.transcript(), options, tools, call_model, call_tool)
        try:
            with turn.pinned():
                await follow(turn, loop.run(run))
        except TrunklineError:
            raise
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("an agent loop failed", loop=loop.name, session=turn.session.id)
            raise PluginError(f"agent loop {loop.name!r} failed: {error}") from error
        return "end_turn"


def _hidden_mode_tools(turn: Turn, tools: Sequence[Tool]) -> Collection[str]:
    """Return the tools for entering and leaving plan mode that cannot be used now."""
    if turn.plans_only or turn.depth:
        return (ENTER_PLAN_MODE, EXIT_PLAN_MODE)
    if turn.session.row.mode == "plan":
        return (ENTER_PLAN_MODE,)
    # Where no tool changes anything, there is nothing to plan for.
    changing = any(not tool.read_only for tool in tools)
    return (EXIT_PLAN_MODE,) if changing else (ENTER_PLAN_MODE, EXIT_PLAN_MODE)


def _hidden_task(turn: Turn, tools: Sequence[Tool]) -> Collection[str]:
    """Return the tool for nested runs where it cannot be used, or where a run would have no other tool."""
    others = any(tool.name not in (TASK, ENTER_PLAN_MODE, EXIT_PLAN_MODE) for tool in tools)
    return () if others and turn.depth < MAX_DEPTH else (TASK,)


def _unanswered_calls(turn: Turn, first: int) -> list[ToolCallPart]:
    """Return the tool calls from index ``first`` on that have no result yet."""
    # A backend that runs tools itself, such as a coding program, yields their results with the calls.
    parts = _parts(turn, first)
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    return [call for call in _calls(parts) if call.tool_call_id not in answered]


def _parts(turn: Turn, first: int = 0) -> list[Part]:
    return [part for _, part in turn.assembler.parts_from(first)]


def _calls(parts: Sequence[Part]) -> list[ToolCallPart]:
    return [part for part in parts if isinstance(part, ToolCallPart)]


def error_part(error: TrunklineError) -> ErrorPart:
    """Return an error as a part of a message."""
    metadata = ErrorMetadata(retryable=error.retryable)
    if isinstance(error, ProviderError):
        code = str(error.upstream_status) if error.upstream_status else None
        ms = None if error.retry_after is None else round(error.retry_after * 1000)
        # What people see has no class names; operators learn why each model of a chain failed.
        chain = "\n".join(getattr(error, "attempts", ())) or None
        original = error.original or None
        provider = original and (error.provider or None)
        metadata = ErrorMetadata(code, error.retryable, chain, ms, provider, original)
    return ErrorPart(error.name, sentence(error), metadata)
