"""Asking a model, or who answers in its place.

One question may take several calls: a provider that fails is followed by the next of its chain, and what it
had said is taken back. Each call is metered.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from gateway.deltas import Complete, MetadataDelta, RateLimit, StopReason
from gateway.errors import BudgetExceededError, EmptyAnswerError, ProviderError, StreamAbortedError
from gateway.events import UsageEvent
from gateway.loops import result_of, rewrite, withdraw
from gateway.messages import Message
from gateway.notice import Notice
from gateway.provider import ChatOptions, ToolDefinition
from gateway.registry import PluginRegistry
from gateway.routing import Agents, Failure, Route, exhausted, unfit, within
from gateway.session import Turn, plausible
from gateway.spending import Meter, Spending, Spent, size
from gateway.tool import Tool
from gateway.toolbox import Toolbox

_ESTIMATE_EVERY = 32
"""Deltas between two looks whether to show what an answer takes, while its backend does not say."""


_MOST_SETS = 64
"""How many sets of tools are remembered: one for each agent and kind of run, mostly."""


class Asking:
    """Asks models for turns."""

    def __init__(
        self, registry: PluginRegistry, agents: Agents, toolbox: Toolbox, spending: Spending
    ) -> None:
        self._registry = registry
        self._agents = agents
        self._toolbox = toolbox
        self._spending = spending
        self._definitions: dict[tuple[int, ...], tuple[ToolDefinition, ...]] = {}

    async def ask(
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
        fallback = self._agents.get(turn.agent).fallback
        async with aclosing(fallback.routes(first)) as routes:
            async for route in routes:
                lack = unfit(route, [message for _, message in turn.shown])
                if lack is not None:
                    if not failures:
                        raise lack
                    failures.append(Failure(route, lack))
                    continue
                if failures:
                    notice.tell(failures[-1], route)
                begin = turn.assembler.next_index
                turn.tally.model, turn.tally.provider = route.model, route.provider.id
                try:
                    stop = await self._call(turn, route, prompt, tools, given)
                except (ProviderError, BudgetExceededError) as error:
                    if not fallback.failed(route, error):
                        raise
                    failures.append(Failure(route, error))
                    withdraw(turn, begin)
                else:
                    fallback.worked(route)
                    return route, stop
        notice.withdraw()
        raise exhausted(failures)

    def options(self, turn: Turn, route: Route, prompt: str, tools: tuple[Tool, ...]) -> ChatOptions:
        """How a model is asked for a turn."""
        profile = self._agents.get(turn.agent)
        return ChatOptions(
            model=route.model,
            temperature=profile.temperature,
            max_tokens=within(profile.max_tokens, route.output_limit),
            tools=self._defined(tools) if route.capabilities.tools else (),
            system_prompt=prompt,
            message_id=turn.message_id,
            first_part=turn.writer.next_index,
            call_ids=turn.call_ids(),
            ask=partial(self._toolbox.may, turn),
            capabilities=route.capabilities,
            response_format=profile.response_format,
        )

    async def _call(
        self,
        turn: Turn,
        route: Route,
        prompt: str,
        tools: tuple[Tool, ...],
        given: Sequence[Message] | None,
    ) -> StopReason:
        """One call of the model: its deltas go to the turn. Returns why it stopped."""
        options = self.options(turn, route, prompt, tools)
        transcript = turn.transcript() if given is None else tuple(given)
        messages = await self._registry.get_hooks().before_llm_call(transcript, options, turn.ctx)
        meter = self._spending.meter(turn, route, options, messages)
        first, stop, usage = await self._stream(turn, route, meter, messages)
        if stop is None:
            raise StreamAbortedError("the model's answer ended without an end", provider=route.provider.id)
        if not (turn.assembler.next_index or turn.depth):
            raise EmptyAnswerError(f"the model said nothing ({stop})", provider=route.provider.id)
        turn.writer.skip_to(turn.assembler.next_index)
        await self._after_call(turn, first, usage)
        return stop

    async def _stream(
        self, turn: Turn, route: Route, meter: Meter, messages: Sequence[Message]
    ) -> tuple[int, StopReason | None, MetadataDelta]:
        """Let the model answer. Returns the first part that is its own, why it stopped, and what it took."""
        first, stop = turn.writer.next_index, None
        usage = MetadataDelta(turn.message_id, 0, 0, 0.0)
        try:
            if self._spending.budgets:
                await self._spending.permit(turn, meter)
                first = turn.writer.next_index
            async with aclosing(route.provider.stream(messages, meter.options)) as stream:
                async for delta in stream:
                    if isinstance(delta, Complete):
                        stop = delta.stop_reason
                    elif isinstance(delta, MetadataDelta):
                        usage = counted(turn, meter, usage, delta)
                    else:
                        turn.emit(delta)
                        if not turn.deltas % _ESTIMATE_EVERY and turn.count_is_due:
                            show_counts(turn, meter.so_far(usage, said_from(turn, first)))
        finally:
            spent = meter.end(usage, said_from(turn, first), finished=stop is not None)
            turn.tally.add(spent.tokens, spent.usd)
        return first, stop, usage

    def _defined(self, tools: tuple[Tool, ...]) -> tuple[ToolDefinition, ...]:
        """The definitions of the tools: one tuple for the same tools, so that adapters encode it once."""
        key = tuple(id(tool) for tool in tools)
        defined = self._definitions.get(key)
        if defined is None:
            if len(self._definitions) >= _MOST_SETS:
                self._definitions.clear()
            defined = self._definitions[key] = tuple(tool.definition for tool in tools)
        return defined

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


def counted(turn: Turn, meter: Meter, usage: MetadataDelta, delta: MetadataDelta) -> MetadataDelta:
    """Show the turn's tokens so far; the news of a rate limit counts nothing."""
    counted = plausible(delta) if delta.rate_limit is None else usage
    show_counts(turn, meter.reported(counted), delta.rate_limit)
    return counted


def show_counts(turn: Turn, call: Spent, rate_limit: RateLimit | None = None) -> None:
    """Show what a turn has taken, the running call included."""
    tally, tokens = turn.tally, call.tokens
    turn.emit(
        MetadataDelta(
            turn.message_id,
            tally.input_tokens + tokens.input,
            tally.output_tokens + tokens.output,
            float((tally.cost or 0) + (call.usd or 0)),
            tally.cached_tokens + tokens.cached,
            rate_limit,
        )
    )


def said_from(turn: Turn, first: int) -> int:
    """How many characters a turn's parts from an index on have."""
    return sum(size(part) for _, part in turn.assembler.parts_from(first))
