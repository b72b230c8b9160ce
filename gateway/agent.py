"""The agent: asks the model, runs the tools it asks for, and asks again until it has answered.

It knows no channel and no vendor. Everything it does is told to the turn as deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
import structlog

from gateway.bus import ActivityBus
from gateway.calls import Calls
from gateway.deltas import Complete, MetadataDelta, StopReason
from gateway.errors import (
    FAILURES,
    EmptyAnswerError,
    PluginError,
    ProviderError,
    StreamAbortedError,
    TrunklineError,
    asked_for,
)
from gateway.events import TurnEndEvent, UsageEvent
from gateway.loops import follow, result_of, rewrite, withdraw
from gateway.messages import (
    ErrorMetadata,
    ErrorPart,
    Message,
    ToolCallPart,
    ToolResultPart,
)
from gateway.nested import Nested
from gateway.notice import Notice
from gateway.plugin import AgentLoop, LoopRun, ToolCall, TurnResult
from gateway.provider import ChatOptions, ToolDefinition
from gateway.registry import PluginRegistry
from gateway.routing import Failure, Fallback, Models, Prices, Route, exhausted
from gateway.session import Turn, plausible
from gateway.steps import Steps
from gateway.tool import RunNested, Tool, ToolOutput
from gateway.toolbox import Toolbox

log = structlog.get_logger("trunkline.agent")


class Generation(msgspec.Struct, frozen=True):
    """How the model is asked: settings of the gateway, the same for every session."""

    model: Callable[[], str]
    system_prompt: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    max_calls: int = 50
    steer: bool = False


class Agent:
    """Runs turns."""

    def __init__(
        self,
        registry: PluginRegistry,
        models: Models,
        fallback: Fallback,
        toolbox: Toolbox,
        steps: Steps,
        activity: ActivityBus,
        generation: Generation,
    ) -> None:
        self._registry = registry
        self._models = models
        self._fallback = fallback
        self._toolbox = toolbox
        self._calls = Calls(toolbox, steps, self._nest)
        self._activity = activity
        self._generation = generation
        self._prices = Prices()
        self._defined_for: tuple[int, ...] = ()
        self._definitions: tuple[ToolDefinition, ...] = ()

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
        chosen = turn.brief.model or turn.entry.inbound.model or turn.session.row.model
        wanted = chosen or self._generation.model()
        route = await self._models.resolve(wanted)
        prompt = await self._system_prompt(turn)
        strategy = self._registry.get_agent_loop()
        if strategy is not None and not turn.depth:
            return await self._custom(turn, strategy, route, prompt)
        if turn.entry.attempts > 1 or turn.entry.recovered:
            await self._calls.resume(turn, await self._tools(turn))
        for _ in range(self._generation.max_calls):
            tools = await self._tools(turn)
            first = turn.writer.next_index
            route, stop = await self._ask(turn, route, prompt, tools)
            calls = open_calls(turn, first)
            if not calls:
                return stop
            said = [part for _, part in turn.assembler.parts_from(first)]
            await self._calls.run(turn, tools, said, calls)
            turn.tell(TurnEndEvent())
            if self._generation.steer and turn.steered:
                return "tool_use"
        raise TrunklineError(f"stopped after {self._generation.max_calls} calls of the model in one turn")

    async def _tools(self, turn: Turn) -> tuple[Tool, ...]:
        """The tools for the next call: what the hooks let through, of that what the turn may use."""
        tools = await self._registry.get_filtered_tools(turn.ctx)
        allowed = turn.brief.tools
        return tools if allowed is None else tuple(tool for tool in tools if tool.name in allowed)

    async def _system_prompt(self, turn: Turn) -> str:
        own = turn.brief.system_prompt
        first = self._generation.system_prompt if own is None else own
        prompts = (first, *await self._registry.get_system_prompts())
        prompt = "\n\n".join(prompt for prompt in prompts if prompt)
        return await self._registry.apply_system_prompt_transforms(prompt, turn.ctx)

    async def _ask(
        self,
        turn: Turn,
        first: Route,
        prompt: str,
        tools: tuple[Tool, ...],
        given: Sequence[Message] | None = None,
    ) -> tuple[Route, StopReason]:
        """Ask the model, or who answers in its place; what a failed attempt said is taken back.

        Raises FallbackExhaustedError when nobody in the chain answers.
        """
        failures: list[Failure] = []
        notice = Notice(turn)
        async with aclosing(self._fallback.routes(first)) as routes:
            async for route in routes:
                if failures:
                    notice.tell(failures[-1], route)
                begin = turn.assembler.next_index
                turn.tally.model, turn.tally.provider = route.model, route.provider.id
                try:
                    stop = await self._call_model(turn, route, prompt, tools, given)
                except ProviderError as error:
                    if not self._fallback.failed(route, error):
                        raise
                    failures.append(Failure(route, error))
                    withdraw(turn, begin)
                else:
                    self._fallback.worked(route)
                    return route, stop
        notice.withdraw()
        raise exhausted(failures)

    async def _call_model(
        self,
        turn: Turn,
        route: Route,
        prompt: str,
        tools: tuple[Tool, ...],
        given: Sequence[Message] | None = None,
    ) -> StopReason:
        """One call of the model: its deltas go to the turn. Returns why it stopped."""
        hooks = self._registry.get_hooks()
        first = turn.writer.next_index
        options = self._options(turn, route, prompt, tools)
        transcript = turn.transcript() if given is None else tuple(given)
        messages = await hooks.before_llm_call(transcript, options, turn.ctx)
        stop: StopReason | None = None
        usage = MetadataDelta(turn.message_id, 0, 0, 0.0)
        async with aclosing(route.provider.stream(messages, options)) as stream:
            async for delta in stream:
                if isinstance(delta, Complete):
                    stop = delta.stop_reason
                elif isinstance(delta, MetadataDelta):
                    usage = self._counted(turn, usage, delta)
                else:
                    turn.emit(delta)
        if stop is None:
            raise StreamAbortedError("the model's answer ended without an end", provider=route.provider.id)
        turn.tally.add(usage, self._prices.cost(route.provider.id, route.model, usage))
        if not (turn.assembler.next_index or turn.depth):
            raise EmptyAnswerError(f"the model said nothing ({stop})", provider=route.provider.id)
        turn.writer.skip_to(turn.assembler.next_index)
        await self._after_call(turn, first, usage)
        return stop

    def _options(self, turn: Turn, route: Route, prompt: str, tools: tuple[Tool, ...]) -> ChatOptions:
        generation = self._generation
        return ChatOptions(
            model=route.model,
            temperature=generation.temperature,
            max_tokens=generation.max_tokens,
            tools=self._defined(tools) if route.provider.capabilities.tools else (),
            system_prompt=prompt,
            message_id=turn.message_id,
            first_part=turn.writer.next_index,
            ask=partial(self._toolbox.may, turn),
        )

    def _defined(self, tools: tuple[Tool, ...]) -> tuple[ToolDefinition, ...]:
        """The definitions of the tools: one tuple for the same tools, so that adapters encode it once."""
        key = tuple(id(tool) for tool in tools)
        if key != self._defined_for:
            self._defined_for = key
            self._definitions = tuple(tool.definition for tool in tools)
        return self._definitions

    def _counted(self, turn: Turn, usage: MetadataDelta, delta: MetadataDelta) -> MetadataDelta:
        """Show the turn's tokens so far; the news of a rate limit counts nothing."""
        counted = plausible(delta) if delta.rate_limit is None else usage
        tally = turn.tally
        turn.emit(
            MetadataDelta(
                turn.message_id,
                tally.input_tokens + counted.input_tokens,
                tally.output_tokens + counted.output_tokens,
                tally.cost or 0.0,
                tally.cached_tokens + counted.cached_tokens,
                delta.rate_limit,
            )
        )
        return counted

    async def _after_call(self, turn: Turn, first: int, usage: MetadataDelta) -> None:
        total = usage.input_tokens + usage.output_tokens
        turn.tell(UsageEvent(total, usage.cached_tokens))
        hooks = self._registry.get_hooks()
        if hooks.uses("after_llm_call"):
            before = result_of(turn, first, total, usage.cached_tokens)
            after = await hooks.after_llm_call(before, turn.ctx)
            if after != before:
                rewrite(turn, first, before, after)
        turn.tell_messages()

    async def _custom(self, turn: Turn, strategy: AgentLoop, route: Route, prompt: str) -> StopReason:
        """Let a plugin's loop answer; its cumulative texts become deltas here."""
        tools = await self._tools(turn)

        async def call_model(messages: Sequence[Message]) -> TurnResult:
            first, before = turn.writer.next_index, turn.tally.tokens
            await self._ask(turn, route, prompt, tools, messages)
            used, cached = (total - past for total, past in zip(turn.tally.tokens, before, strict=True))
            return result_of(turn, first, used, cached)

        async def call_tool(call: ToolCall) -> ToolOutput:
            part = ToolCallPart(call.id, call.name, dict(call.arguments))
            if part not in calls_of(turn, 0):
                turn.emit_part(part)
            return (await self._calls.run(turn, tools, [part], [part]))[0]

        options = self._options(turn, route, prompt, tools)
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
        return Nested(self.run, self._activity, turn, call_id)


def calls_of(turn: Turn, first: int) -> list[ToolCallPart]:
    """The tool calls among a turn's parts from an index on."""
    return [part for _, part in turn.assembler.parts_from(first) if isinstance(part, ToolCallPart)]


def open_calls(turn: Turn, first: int) -> list[ToolCallPart]:
    """The calls from an index on that have no result; the others its backend has run itself."""
    parts = [part for _, part in turn.assembler.parts_from(first)]
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    return [part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id not in answered]


def error_part(error: TrunklineError) -> ErrorPart:
    """An error as a part of a message."""
    code = str(error.upstream_status) if isinstance(error, ProviderError) and error.upstream_status else None
    return ErrorPart(error.name, str(error), ErrorMetadata(code=code, retryable=error.retryable))
