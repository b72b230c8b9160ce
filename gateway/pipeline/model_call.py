"""Calls of the model for a turn, with fallback along the provider chain.

One request may take several calls: when a provider fails, its partial output is withdrawn and the next one of
the chain is called. If the whole chain fails, the withdrawn output is restored before the error is raised, so
that readers keep what they saw. Each call is metered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.contract.deltas import Complete, MetadataDelta, PartDelta, RateLimit, StopReason, ToolResultEnd
from gateway.contract.errors import (
    BudgetExceededError,
    ContextLengthError,
    EmptyAnswerError,
    ProviderError,
    StreamAbortedError,
    fallback_notice,
)
from gateway.contract.events import UsageEvent
from gateway.contract.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart, is_notice
from gateway.contract.provider import ChatOptions, ToolDefinition
from gateway.contract.tool import Tool
from gateway.counters import Counters, observe
from gateway.models import (
    Agents,
    CallCost,
    Failure,
    Meter,
    Route,
    Spending,
    clamp_max_tokens,
    exhausted_error,
    missing_capability,
)
from gateway.pipeline.agent_loop import rewrite, turn_result
from gateway.pipeline.compactor import Compactor, Request
from gateway.pipeline.tools import ToolRunner
from gateway.rooms.envelope import Envelopes
from gateway.session import Turn, clamp_usage
from gateway.session.compaction import part_size, shorten
from gateway.trail.calls import ModelStep, describe
from gateway.trail.recorder import AFTER

log = structlog.get_logger("trunkline.model")

_ESTIMATE_EVERY = 32
"""Number of deltas between two estimates of the usage, for providers that report it only at the end."""

_MAX_TOOL_SETS = 64
"""Number of tool sets whose definitions are cached: usually one for each agent and kind of run."""


@dataclass(eq=False)
class ModelCaller:
    """Calls the model, falling back along the chain."""

    agents: Agents
    tool_runner: ToolRunner
    spending: Spending
    envelopes: Envelopes
    compactor: Compactor
    counters: Counters

    def __post_init__(self) -> None:
        self._definitions: dict[tuple[int, ...], tuple[tuple[Tool, ...], tuple[ToolDefinition, ...]]] = {}

    async def call(
        self,
        turn: Turn,
        first: Route,
        prompt: str,
        tools: tuple[Tool, ...],
        messages: Sequence[Message] | None = None,
    ) -> tuple[Route, StopReason]:
        """Call the model, or a fallback after a failure; the output goes to the turn.

        ``messages`` replace the turn's transcript. Returns the route that answered and why the model stopped.
        Raises FallbackExhaustedError when every provider of the chain fails.
        """
        failures: list[Failure] = []
        withdrawn: list[tuple[int, Part]] = []
        notice = _FallbackNotice(turn)
        fallback = self.agents.get(turn.agent).fallback
        candidates = fallback.candidates(first)
        trail = turn.entry.trail
        while (route := await candidates.next()) is not None:
            trail.skip(candidates.take_skipped())
            missing = missing_capability(
                route, [message for _, message in turn.shown], turn.options.tools or ()
            )
            if missing is not None:
                # Reported for the chosen model: answering with another one would hide the reason.
                if not failures:
                    raise missing
                failures.append(Failure(route, missing))
                trail.skip([(route.name, str(missing))])
                continue
            if failures:
                trail.add("fallback", route.name, asked=True, reason=failures[-1].error.name)
                notice.show(failures[-1], route)
            begin = turn.assembler.next_index
            turn.usage.model, turn.usage.provider = route.model, route.provider.id
            try:
                with ModelStep(trail, turn.usage, route.provider.id, route.model, len(failures) + 1):
                    stop = await self._call_fitting(turn, route, prompt, tools, messages)
            except (ProviderError, BudgetExceededError) as error:
                if not fallback.record_failure(route, error):
                    trail.skip([(name, f"{AFTER}{error.name}") for name in candidates.unasked()])
                    _restore(turn, withdrawn)
                    raise
                failures.append(Failure(route, error))
                withdrawn += _withdraw(turn, begin)
            else:
                fallback.record_success(route)
                return route, stop
        trail.skip(candidates.take_skipped())
        notice.remove()
        _restore(turn, withdrawn)
        raise exhausted_error(failures)

    def options(self, turn: Turn, route: Route, prompt: str, tools: tuple[Tool, ...]) -> ChatOptions:
        """Return the options of a model call. Those of the message override those of the agent."""
        profile, own = self.agents.get(turn.agent), turn.options
        bound = min(filter(None, (own.max_tokens, profile.max_tokens)), default=None)
        offered = self._defined(tools) if own.tools is None else own.tools
        return ChatOptions(
            model=route.model,
            temperature=profile.temperature if own.temperature is None else own.temperature,
            top_p=own.top_p,
            seed=own.seed,
            max_tokens=clamp_max_tokens(bound, route.output_limit),
            output_limit=route.output_limit,
            tools=offered if route.capabilities.tools else (),
            tool_choice=own.tool_choice,
            stop_sequences=profile.stop_sequences if own.stop_sequences is None else own.stop_sequences,
            server_retries=own.server_retries,
            system_prompt=prompt,
            message_id=turn.message_id,
            first_part=turn.writer.next_index,
            call_ids=turn.tool_call_ids(),
            ask=partial(self.tool_runner.may_run, turn),
            capabilities=route.capabilities,
            response_format=profile.response_format if own.response_format != "json" else "json",
            answer_schema=own.answer_schema,
            effort=own.effort or profile.effort,
            on_retry=partial(self._record_retry, turn, route),
            on_lease=partial(turn.entry.trail.lease, route.provider.id),
            allowed_tools=turn.overrides.tools,
        )

    def _defined(self, tools: tuple[Tool, ...]) -> tuple[ToolDefinition, ...]:
        """Return the definitions of tools, as the same tuple for the same tools."""
        # Adapters cache what they encode by the identity of this tuple, so equal tools must be one tuple.
        key = tuple(map(id, tools))
        known = self._definitions.get(key)
        if known is None:
            if len(self._definitions) >= _MAX_TOOL_SETS:
                self._definitions.clear()
            # The tools are kept, too: the ids of tools that are gone could be those of others.
            known = self._definitions[key] = (tools, tuple(tool.definition for tool in tools))
        return known[1]

    def _record_retry(
        self, turn: Turn, route: Route, failure: ProviderError, attempt: int, seconds: float
    ) -> None:
        provider, model = route.provider.id, route.model
        self.counters.retries[*self.counters.models.of(provider, model), failure.name] += 1
        detail = {"provider": provider, "model": model, "attempt": attempt, **describe(failure)}
        turn.entry.trail.add("model", route.name, "failed", **detail)
        turn.entry.trail.await_next("rate" if failure.retry_after else "retry", seconds, provider=provider)
        log.info(
            "retrying a model call",
            provider=provider,
            model=model,
            session=turn.session.id,
            attempt=attempt,
            error=failure.name,
            wait_ms=round(seconds * 1000),
        )

    async def compact(self, turn: Turn, route: Route, instructions: str) -> str:
        """Summarize the session of a turn. Returns the reply."""
        return await self.compactor.compact(turn, route, self.options(turn, route, "", ()), instructions)

    async def _call_fitting(
        self,
        turn: Turn,
        route: Route,
        prompt: str,
        tools: tuple[Tool, ...],
        messages: Sequence[Message] | None,
    ) -> StopReason:
        """Call one provider with a request that fits in its context; after a refusal, once more."""
        options = self.options(turn, route, prompt, tools)
        own = route.name == turn.model
        request = await self.compactor.prepare(turn, route, options, messages, own=own)
        begin = turn.assembler.next_index
        if turn.writer.next_index != options.first_part:
            # A notice about a summary was added to the answer.
            options = self.options(turn, route, prompt, tools)
        try:
            return await self._call_once(turn, route, options, messages, request)
        except ContextLengthError as error:
            if turn.assembler.next_index != begin:
                raise
            request = await self.compactor.recover(turn, route, request, error)
        options = self.options(turn, route, prompt, tools)
        return await self._call_once(turn, route, options, messages, request)

    async def _call_once(
        self,
        turn: Turn,
        route: Route,
        options: ChatOptions,
        messages: Sequence[Message] | None,
        request: Request,
    ) -> StopReason:
        """Call one provider, with the hooks before and after. Returns why the model stopped."""
        transcript = turn.transcript() if messages is None else tuple(messages)
        if messages is not None or turn.session.has_client_results:
            from gateway.provider_http.transcript import with_results  # loads the HTTP clients

            transcript = tuple(with_results(transcript))
        sent, options = await turn.plugins.hooks.before_llm_call(transcript, options, turn.ctx)
        if request.shorten_to is not None:
            sent = shorten(sent, request.shorten_to)
        sent = [message.with_state_of(route.provider.id, route.model) for message in sent]
        sent = self.envelopes.apply(turn.session, sent)
        meter = self.spending.meter(turn, route, options, sent)
        first, stop, usage = await self._stream(turn, route, meter, sent)
        if stop is None:
            raise StreamAbortedError(
                "the stream ended before the answer was complete", provider=route.provider.id
            )
        if not (turn.has_content or turn.depth):
            why = ": its reasoning used up max_tokens" if stop == "max_tokens" else f" ({stop})"
            raise EmptyAnswerError(f"the model said nothing{why}", provider=route.provider.id)
        turn.writer.skip_to(turn.assembler.next_index)
        request.record(turn.session, usage)
        await self._after_call(turn, first, usage)
        return stop

    async def _stream(
        self, turn: Turn, route: Route, meter: Meter, messages: Sequence[Message]
    ) -> tuple[int, StopReason | None, MetadataDelta]:
        """Stream one call into the turn. Returns its first part's index, its stop reason and its usage."""
        first, stop = turn.writer.next_index, None
        usage = MetadataDelta(turn.message_id, 0, 0, 0.0)
        key = (counters := self.counters).models.of(route.provider.id, route.model)
        begun, waiting = time.monotonic(), True
        try:
            await self.spending.permit(turn, meter)
            # Asking a person for more budget may have added parts to the answer.
            first = turn.writer.next_index
            async with aclosing(route.provider.stream(messages, meter.options)) as stream:
                async for delta in stream:
                    if turn.aborted:  # the provider hid the cancellation
                        raise asyncio.CancelledError
                    if waiting and not isinstance(delta, MetadataDelta):
                        waiting = False
                        observe(counters.first_piece, key, time.monotonic() - begun)
                    if isinstance(delta, Complete):
                        observe(counters.call, key, time.monotonic() - begun)
                        stop = delta.stop_reason
                        # A router such as OpenRouter reports at the end which provider it chose.
                        turn.usage.provider = delta.final_metadata.provider or turn.usage.provider
                        turn.usage.model = delta.final_metadata.model or turn.usage.model
                    elif isinstance(delta, MetadataDelta):
                        usage = _report_usage(turn, meter, usage, delta)
                    else:
                        turn.emit(delta)
                        if isinstance(delta, ToolResultEnd):
                            turn.entry.trail.backend_tool(turn.assembler.parts_from(first), delta)
                        if not turn.delta_count % _ESTIMATE_EVERY and turn.usage_is_due:
                            _emit_usage(turn, meter.cost_so_far(usage, _count_written(turn, first)))
        except ProviderError as error:
            if turn.aborted:  # no other provider is called for a turn that was stopped
                raise asyncio.CancelledError from error
            counters.failures[*key, error.name] += 1
            raise
        finally:
            # A failed or cancelled call is paid for, too, so the meter ends on every way out.
            turn.flush()
            reported = stop is not None and bool(usage.input_tokens or usage.output_tokens)
            written = 0 if reported else _count_written(turn, first)
            spent = meter.finish(usage, written, finished=stop is not None)
            turn.usage.add(spent.tokens, spent.usd)
        return first, stop, usage

    async def _after_call(self, turn: Turn, first: int, usage: MetadataDelta) -> None:
        total = usage.input_tokens + usage.output_tokens
        turn.notify(UsageEvent(total, usage.cached_tokens))
        hooks = turn.plugins.hooks
        if hooks.uses("after_llm_call"):
            before = turn_result(turn, first, total, usage.cached_tokens)
            after = await hooks.after_llm_call(before, turn.ctx)
            if after != before:
                rewrite(turn, first, before, after)
        turn.notify_messages()


class _FallbackNotice:
    """The line in an answer that names the failed provider and its fallback."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._index: int | None = None

    def show(self, failure: Failure, route: Route) -> None:
        """Show that ``route`` answers after a failure; this replaces the line of an earlier failure."""
        self._put(fallback_notice(failure.route.provider.id, failure.error, route.provider.id))

    def remove(self) -> None:
        """Remove the line: no provider answered, and the error names every attempt."""
        if self._index is not None:
            self._put("")

    def _put(self, text: str) -> None:
        turn, notice = self._turn, TextPart(text, "notice")
        if self._index is None:
            self._index = turn.assembler.next_index
            turn.emit_part(notice)
        else:
            turn.emit(PartDelta(turn.message_id, self._index, notice))


def _withdraw(turn: Turn, first: int) -> list[tuple[int, Part]]:
    """Empty the parts of a call that failed in the middle. Returns them with their indices.

    Notices stay, as they come from the gateway and not from the failed provider.
    """
    withdrawn = [(index, part) for index, part in turn.assembler.parts_from(first) if not is_notice(part)]
    for index, _ in withdrawn:
        turn.emit(PartDelta(turn.message_id, index, TextPart("")))
    turn.writer.skip_to(turn.assembler.next_index)
    return withdrawn


def _restore(turn: Turn, withdrawn: Sequence[tuple[int, Part]]) -> None:
    """Show withdrawn parts again, except tool calls that never ran."""
    answered = {part.tool_call_id for _, part in withdrawn if isinstance(part, ToolResultPart)}
    for index, part in withdrawn:
        if not isinstance(part, ToolCallPart) or part.tool_call_id in answered:
            turn.emit(PartDelta(turn.message_id, index, part))


def _report_usage(turn: Turn, meter: Meter, usage: MetadataDelta, delta: MetadataDelta) -> MetadataDelta:
    """Show the turn's usage after a report of the provider. Returns the usage of the call so far."""
    # A report of a rate limit carries no counts of its own.
    usage = clamp_usage(delta) if delta.rate_limit is None else usage
    _emit_usage(turn, meter.reported_cost(usage), delta.rate_limit)
    return usage


def _emit_usage(turn: Turn, call: CallCost, rate_limit: RateLimit | None = None) -> None:
    """Show the usage of a turn, the running call included."""
    tally, tokens = turn.usage, call.tokens
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


def _count_written(turn: Turn, first: int) -> int:
    """Return the number of characters that the model wrote in the parts from index ``first`` on."""
    return sum(part_size(part) for _, part in turn.assembler.parts_from(first) if not is_notice(part))
