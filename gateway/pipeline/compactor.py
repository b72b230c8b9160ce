"""The compactor: keeps a conversation within the context window of its model.

Before a model call it estimates the request. Where that is too long it hides old tool outputs, then lets a
model summarize the earlier messages; both are durable before the call. Where nothing may be stored (another
model of the fallback chain, a nested run), or no summary could be made, the request alone is shortened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from gateway.contract.assembler import Assembler
from gateway.contract.deltas import Complete, MetadataDelta
from gateway.contract.errors import ContextLengthError, PluginError, ProviderError
from gateway.contract.messages import Message, TextPart, new_id, sound
from gateway.contract.plugin import Compacting
from gateway.contract.provider import ChatOptions, ToolDefinition
from gateway.events.types import SessionCompacted, SessionCompacting
from gateway.models import ANSWER_TOKENS, Agents, ContextWindow, Models, Profile, Route, Spending
from gateway.models.meter import overhead_tokens
from gateway.rooms.envelope import Envelopes
from gateway.session import Session, Turn, clamp_usage
from gateway.session.compaction import (
    CHARACTERS_PER_TOKEN,
    is_summary,
    new_summary,
    part_size,
    tokens_of,
    transcript,
)

log = structlog.get_logger("trunkline.compaction")

_SMALL = 1_500
"""Estimated tokens that fit in every model: shorter requests are not compared with its window."""
_KEPT_SHARE = 5
"""The newest messages stay beside a summary, up to the window's size divided by this."""
_SUMMARY_SECONDS = 180
_PAUSE_SECONDS = 60.0
"""Pause after a failed compaction; until then requests are shortened, so that not every turn pays for one."""
_MAX_TOOL_SETS = 64
_DONE = "The conversation had become too long for the model, so its earlier part was summarized."
_NOT_DONE = (
    "The conversation is too long for the model, and could not be summarized: {}. The model gets only its "
    "newest part. /compact tries again, /new starts a new conversation."
)


class _NoSummaryError(Exception):
    """The reason for which there is no summary, for users."""


class Request:
    """The size of one model call in estimated tokens, and the limit that it has to be shortened to.

    ``stores``: the session may be changed to make room, because this is a call of its own model.
    """

    def __init__(self, size: int, options: ChatOptions, *, stores: bool) -> None:
        self.size = size
        self.window: ContextWindow | None = None
        self.stores = stores
        self.shorten_to: int | None = None
        self._options = options

    def limit(self, share: float = 1.0) -> int:
        """Return the largest size that fits."""
        assert self.window is not None, "a request without a window is small"
        return self.window.limit(self._options.max_tokens or ANSWER_TOKENS, share)

    def messages_limit(self) -> int:
        """Return the tokens that fit beside the system prompt and the tools."""
        return max(1, self.limit() - overhead_tokens(self._options))

    def learn(self, error: ContextLengthError) -> None:
        """Adjust the window to a refusal."""
        if self.window is not None:
            self.window.learn(str(error), self.size, self._options.max_tokens or ANSWER_TOKENS)

    def record(self, session: Session, usage: MetadataDelta) -> None:
        """Adjust the window to reported tokens. Cached ones are part of the input."""
        if self.window is None or self.shorten_to is not None:
            return
        self.window.calibrate(usage.input_tokens, self.size)
        total = usage.input_tokens + usage.output_tokens
        if self.stores and total > self.limit() * self.window.ratio:
            session.overflowed = True


class Compactor:
    """Makes room in the context of a model. ``history`` is the setting ``history_window``, in tokens."""

    def __init__(
        self,
        agents: Agents,
        models: Models,
        spending: Spending,
        envelopes: Envelopes,
        history: int,
    ) -> None:
        self._agents = agents
        self._models = models
        self._spending = spending
        self._envelopes = envelopes
        self._history = history
        self._tools: dict[int, tuple[tuple[ToolDefinition, ...], int]] = {}

    async def prepare(
        self, turn: Turn, route: Route, options: ChatOptions, messages: Sequence[Message] | None, *, own: bool
    ) -> Request:
        """Make room for a model call, if it needs that.

        ``messages`` replace the turn's transcript. ``own`` is whether the model is that of the session.
        """
        stores = own and messages is None and turn.durable and not turn.depth
        size = self._size(turn, options, messages)
        request = Request(size, options, stores=stores)
        if size < _SMALL and not (stores and turn.session.is_context_crowded):
            return request
        request.window = await self._models.window(route)
        share = self._agents.get(turn.agent).compaction
        if stores and not share:
            self._halve(turn, request)
        elif stores and self._overflows(turn.session, request, share or 1.0):
            await self._make_room(turn, route, request, share or 1.0)
        if request.size > request.limit():
            request.shorten_to = request.messages_limit()
        return request

    async def recover(self, turn: Turn, route: Route, request: Request, error: ContextLengthError) -> Request:
        """Make room after the provider refused a request as too long."""
        if request.window is None:
            request.window = await self._models.window(route)
        request.learn(error)
        if request.stores and self._agents.get(turn.agent).compaction:
            await self._compact_or_notify(turn, route, request)
        # Even if the estimate fits: it did before the refusal, too.
        if request.size > request.limit():
            request.shorten_to = request.messages_limit()
        return request

    async def compact(self, turn: Turn, route: Route, options: ChatOptions, instructions: str) -> str:
        """Summarize everything for /compact. Returns the reply."""
        request = Request(0, options, stores=True)
        request.window = await self._models.window(route)
        try:
            count = await self._summarize(turn, route, request, instructions, manual=True)
        except _NoSummaryError as error:
            return f"The conversation is unchanged: {error}."
        if not count:
            return "There is nothing to compact: the model gets no message that a summary does not cover."
        return f"Summarized {count} messages. The model now gets the summary instead of them."

    def _size(self, turn: Turn, options: ChatOptions, messages: Sequence[Message] | None) -> int:
        """Estimate a request. The messages of a session are counted once, when they are added."""
        if messages is not None or turn.depth:
            tokens = sum(map(tokens_of, turn.transcript() if messages is None else messages))
        else:
            tokens = turn.session.context_tokens
            if turn.assembler.next_index:
                parts = turn.assembler.parts_from(0)
                tokens += sum(part_size(part) for _, part in parts) // CHARACTERS_PER_TOKEN
        known = self._tools.get(id(options.tools))
        if known is None or known[0] is not options.tools:
            if len(self._tools) >= _MAX_TOOL_SETS:
                self._tools.clear()
            prompt = len(options.system_prompt) // CHARACTERS_PER_TOKEN
            known = self._tools[id(options.tools)] = (options.tools, overhead_tokens(options) - prompt)
        return tokens + known[1] + len(options.system_prompt) // CHARACTERS_PER_TOKEN

    def _overflows(self, session: Session, request: Request, share: float) -> bool:
        return session.overflowed or session.is_context_crowded or request.size > request.limit(share)

    def _halve(self, turn: Turn, request: Request) -> None:
        """Without compaction: hide the older half of the conversation once it exceeds its window."""
        session, limit = turn.session, min(self._history, request.messages_limit())
        before = session.context_tokens
        if before > limit or session.is_context_crowded:
            session.halve_context(min(limit, before))
            request.size -= before - session.context_tokens
            session.overflowed = False

    async def _make_room(self, turn: Turn, route: Route, request: Request, share: float) -> None:
        before = turn.session.context_tokens
        if await turn.session.prune():
            request.size -= before - turn.session.context_tokens
            turn.session.overflowed = False
        if self._overflows(turn.session, request, share):
            await self._compact_or_notify(turn, route, request)

    async def _compact_or_notify(self, turn: Turn, route: Route, request: Request) -> None:
        """Let a summary replace the earlier messages; without one, notify the chat."""
        session, before = turn.session, turn.session.context_tokens
        if time.monotonic() < session.no_compaction_before:
            return
        try:
            if await self._summarize(turn, route, request, "", manual=False):
                request.size -= before - session.context_tokens
                turn.emit_part(TextPart(_DONE, "notice"))
        except _NoSummaryError as error:
            session.no_compaction_before = time.monotonic() + _PAUSE_SECONDS
            turn.emit_part(TextPart(_NOT_DONE.format(error), "notice"))

    async def _summarize(
        self, turn: Turn, route: Route, request: Request, instructions: str, *, manual: bool
    ) -> int:
        """Replace messages with a summary and return their number; 0 if there are none.

        Raises _NoSummaryError; nothing has changed then.
        """
        session = turn.session
        keep = 0 if manual else min(request.limit(), session.context_tokens) // _KEPT_SHARE
        covered, until = session.coverable(keep)
        if not covered:
            return 0
        trusted = not (turn.is_untrusted or turn.holds_others_content)
        trigger = "manual" if manual else "auto"
        before = session.context_tokens
        if session.events.wants(SessionCompacting, session.id):
            session.events.emit(SessionCompacting(session.id, trigger, instructions))
        try:
            asked = await turn.plugins.hooks.session_compacting(
                Compacting(trigger, session.id, instructions), turn.ctx
            )
        except PluginError as error:
            raise _NoSummaryError(str(error)) from error
        text = asked.summary
        if text is None:
            text = await self._ask(turn, route, covered, asked.instructions)
        text = session.redactor.redact_text(sound(text)).strip()
        summary = new_summary(session.id, text, trusted=trusted)
        size = tokens_of(summary)
        if not text:
            raise _NoSummaryError("the summary was empty")
        if size >= sum(map(tokens_of, covered)):
            raise _NoSummaryError("the summary was longer than the messages")
        if [each.id for each in covered] != [each.id for each in session.coverable(keep)[0]]:
            # A message was deleted in the meantime, so that the summary may repeat what it said.
            raise _NoSummaryError("a message changed in the meantime")
        await session.summarize(summary, until)
        log.info("compacted", session=session.id, trigger=trigger, messages=len(covered), tokens=size)
        count = sum(not is_summary(each) for each in covered)
        after = session.context_tokens
        session.events.emit(SessionCompacted(session.id, trigger, count, summary.id, before, after))
        return count

    async def _ask(self, turn: Turn, route: Route, covered: Sequence[Message], instructions: str) -> str:
        """Let the hidden agent summarize messages: with its own model, or else with the session's."""
        profile, small = self._agents.get("compaction"), self._agents.get(turn.agent).small_model
        routes = [route]
        if small is not None:
            try:
                routes.insert(0, await self._models.resolve(small))
            except ProviderError as error:
                log.error("cannot use the small model", model=small, reason=str(error))
        shown = self._envelopes.apply(turn.session, covered)
        reason = ""
        for candidate in dict.fromkeys(routes):
            try:
                return await self._call(turn, candidate, profile, shown, instructions)
            except (ProviderError, TimeoutError) as error:
                reason = str(error) or f"no summary within {_SUMMARY_SECONDS} seconds"
                log.warning("a summary failed", model=candidate.name, reason=reason, session=turn.session.id)
        raise _NoSummaryError(reason)

    async def _call(
        self, turn: Turn, route: Route, profile: Profile, covered: Sequence[Message], instructions: str
    ) -> str:
        """Make one metered call for a summary, and return the text. Tool calls in it are not run."""
        window = await self._models.window(route)
        longest = min(filter(None, (profile.max_tokens, route.output_limit, window.limit(None) // 4)))
        prompt = profile.system_prompt
        if instructions.strip():
            prompt += f"\n\nThe user wants the summary to follow these instructions:\n{instructions.strip()}"
        left = window.limit(longest, 0.9) - len(prompt) // CHARACTERS_PER_TOKEN
        source = transcript(covered, max(1, left) * CHARACTERS_PER_TOKEN)
        options = ChatOptions(
            model=route.model,
            max_tokens=longest,
            system_prompt=prompt,
            message_id=new_id(),
            capabilities=route.capabilities,
        )
        asked = Message(session_id=turn.session.id, role="user", parts=(TextPart(source),))
        meter = self._spending.meter(turn, route, options, [asked])
        assembler = Assembler(turn.session.id, options.message_id)
        usage, finished = MetadataDelta(options.message_id, 0, 0, 0.0), False
        try:
            await self._spending.permit(turn, meter)
            async with (
                asyncio.timeout(_SUMMARY_SECONDS),
                aclosing(route.provider.stream([asked], meter.options)) as stream,
            ):
                async for delta in stream:
                    if isinstance(delta, MetadataDelta):
                        usage = clamp_usage(delta) if delta.rate_limit is None else usage
                    finished |= isinstance(delta, Complete)
                    assembler.apply(delta)
        except ContextLengthError as error:
            window.learn(str(error), tokens_of(asked), longest)
            raise
        finally:
            # A failed or cancelled call is paid for, too.
            written = sum(part_size(part) for _, part in assembler.parts_from(0))
            spent = meter.finish(usage, written, finished=finished)
            turn.usage.add(spent.tokens, spent.usd)
        if not finished:
            raise _NoSummaryError("the model did not finish the summary")
        return assembler.message().text
