"""A turn: one answer being made, and everything that is known while it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from decimal import Decimal
from typing import Any, TypeVar, cast

from msgspec import Struct

from gateway.assembler import Assembler
from gateway.channel import Address, Sender, SenderRole
from gateway.deltas import (
    Delta,
    DeltaWriter,
    MetadataDelta,
    StopReason,
    TextDelta,
    deltas_of,
)
from gateway.events import AgentEvent, MessagesEvent, Narrator
from gateway.frames import ApprovalAsked
from gateway.inbox import Entry
from gateway.messages import Message, Metadata, Part, ToolCallPart, sound
from gateway.plugin import TurnContext
from gateway.session.session import Session
from gateway.tokens import Tokens

T = TypeVar("T")

_METADATA_EVERY = 0.5
"""Seconds between two metadata deltas; the newest values come with ``complete`` anyway."""

_MOST_TOKENS = 1 << 40
_MOST_DOLLARS = 1e6
"""Beyond these a backend's word about one call is nothing that can be true."""


class Tally:
    """What the calls of a turn took so far: tokens, US dollars, and who answered last."""

    __slots__ = ("cached_tokens", "cost", "input_tokens", "model", "output_tokens", "provider")

    def __init__(self) -> None:
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.cost: Decimal | None = None
        self.model: str | None = None
        self.provider: str | None = None

    def add(self, tokens: Tokens, cost: Decimal | None) -> None:
        """Count one call of a model."""
        self.input_tokens += tokens.input
        self.output_tokens += tokens.output
        self.cached_tokens += tokens.cached
        if cost is not None:
            self.cost = (self.cost or 0) + cost

    @property
    def tokens(self) -> tuple[int, int]:
        """All tokens so far, and how many of them were cached."""
        return self.input_tokens + self.output_tokens, self.cached_tokens

    def include(self, nested: Tally) -> None:
        """Count what a nested run took."""
        self.input_tokens += nested.input_tokens
        self.output_tokens += nested.output_tokens
        self.cached_tokens += nested.cached_tokens
        if nested.cost is not None:
            self.cost = (self.cost or 0) + nested.cost


def plausible(call: MetadataDelta) -> MetadataDelta:
    """A backend's count of tokens and its word on the cost, kept within what can be true."""
    counts = (call.input_tokens, call.output_tokens, call.cached_tokens, call.cache_write_tokens)
    if all(0 <= count <= _MOST_TOKENS for count in counts) and 0 <= call.cost <= _MOST_DOLLARS:
        return call
    sent, got, cached, written = (min(max(count, 0), _MOST_TOKENS) for count in counts)
    cost = call.cost if 0 <= call.cost <= _MOST_DOLLARS else 0.0
    return MetadataDelta(call.message_id, sent, got, cost, cached, call.rate_limit, written)


class Brief(Struct, frozen=True):
    """What sets a nested run apart: its task, its tools, prompt and model (None: the usual)."""

    task: str = ""
    tools: frozenset[str] | None = None
    system_prompt: str | None = None
    model: str | None = None

    def narrowed(self, tools: Collection[str] | None) -> frozenset[str] | None:
        """The tools for a run within this one: never more than there are here."""
        if tools is None or self.tools is None:
            return self.tools if tools is None else frozenset(tools)
        return self.tools & frozenset(tools)


class Turn:
    """One run of the agent for one accepted message.

    ``emit`` takes every delta: into the assembler, and to the session's readers. ``clock`` tells seconds.
    """

    durable = True
    """Whether what its tools do is recorded, so that a crash does not do it twice."""

    def __init__(
        self,
        session: Session,
        entry: Entry,
        clock: Callable[[], float] = time.monotonic,
        role: SenderRole = "user",
        agent: str = "main",
    ) -> None:
        self.session = session
        self.entry = entry
        self.message_id = entry.answer_id
        self.writer = DeltaWriter(self.message_id)
        self.assembler = Assembler(session.id, self.message_id)
        self.tally = Tally()
        self.steps_written = 0
        self.shown: list[tuple[int, Message]] = []
        """What was shown with the turn's beginning, by number; committed together with the answer."""
        self.committed = False
        self.placing: Message | None = None
        """The finished answer, when it is durable and still has to be placed on its platform."""
        self.ctx = TurnContext(session.id, entry.inbound.sender, session.bus, entry.inbound, agent, role)
        self._clock = clock
        self._started = clock()
        self._metadata_at = -_METADATA_EVERY + self._started
        self._task: asyncio.Task[object] | None = None
        self._narrator = Narrator()
        self.asked: dict[str, ApprovalAsked] = {}
        self.brief = Brief()
        self.agent = agent
        """Whose settings it goes by."""
        self.depth = 0
        self.children: set[Turn] = set()
        """Nested runs that are under way; they end with the turn."""
        self.steered = False
        """Whether the user wrote more meanwhile; with ``steer`` the turn ends at its next boundary."""
        self.aborted = False
        self.deltas = 0
        """How many deltas it was made of."""
        self.first_text: float | None = None
        """Seconds from the start of the turn to the first text of the answer."""

    @property
    def sender(self) -> Sender:
        """Who asked."""
        return self.entry.inbound.sender

    @property
    def address(self) -> Address:
        """Where the answer goes."""
        return self.entry.inbound.address

    def emit(self, delta: Delta) -> None:
        """Take one delta in and show it."""
        if not (isinstance(delta, TextDelta) and delta.content.isascii()):
            delta = sound(delta)
        self.assembler.apply(delta)
        self.deltas += 1
        if self.first_text is None and isinstance(delta, TextDelta):
            self.first_text = self._clock() - self._started
        if isinstance(delta, MetadataDelta) and not self._is_due(delta):
            return
        self.session.publish(delta)
        if self.session.agent_events:
            self._narrator.tell(delta, self.tell)

    @property
    def count_is_due(self) -> bool:
        """Whether what the turn takes has not been shown for a while."""
        return self._clock() - self._metadata_at >= _METADATA_EVERY

    def _is_due(self, delta: MetadataDelta) -> bool:
        """Whether to show a count; a rate limit is always shown."""
        if delta.rate_limit is None and not self.count_is_due:
            return False
        self._metadata_at = self._clock()
        return True

    def emit_part(self, part: Part) -> None:
        """Take in a part that is already whole, behind all that was said so far."""
        for delta in deltas_of(part, self.message_id, self.assembler.next_index):
            self.emit(delta)
        self.writer.skip_to(self.assembler.next_index)

    def transcript(self) -> tuple[Message, ...]:
        """What the model is shown: the session, the new messages, and what the answer holds so far."""
        if not self.assembler.next_index:
            return self.session.model_view()
        return (*self.session.model_view(), self.assembler.message())

    def call_ids(self) -> frozenset[str]:
        """The ids of the tool calls that the answer holds so far."""
        if not self.assembler.next_index:
            return frozenset()
        parts = self.assembler.parts_from(0)
        return frozenset(part.tool_call_id for _, part in parts if isinstance(part, ToolCallPart))

    def tell(self, event: AgentEvent) -> None:
        """Tell an event of the run to whoever listens on the session."""
        self.session.agent_events.tell(event)

    def tell_messages(self) -> None:
        """Tell the whole transcript to whoever listens on the session."""
        if self.session.agent_events:
            self.tell(MessagesEvent(self.transcript()))

    def abort(self) -> None:
        """End the turn as soon as it can be; what it has so far is kept."""
        self.aborted = True
        for child in self.children:
            child.abort()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def abortable(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do work that ``abort`` ends; None if it did. A cancellation from elsewhere passes through."""
        if self.aborted:
            work.close()
            return None
        self._task = task = cast("asyncio.Task[object]", asyncio.current_task())
        try:
            return await work
        except asyncio.CancelledError:
            if not self.aborted or task.uncancel():
                raise
            return None
        finally:
            self._task = None

    def result(self, stop_reason: StopReason) -> Message:
        """The finished message."""
        tally = self.tally
        metadata = Metadata(
            model=tally.model,
            provider=tally.provider,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            cached_tokens=tally.cached_tokens or None,
            cost=None if tally.cost is None else float(tally.cost),
            duration_ms=round((self._clock() - self._started) * 1000),
            stop_reason=stop_reason,
        )
        self.assembler.metadata = metadata
        return self.assembler.message()
