"""A turn: the state of one answer while it is being made."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from gateway.contract.assembler import Assembler
from gateway.contract.channel import Address, Sender, SenderRole
from gateway.contract.deltas import (
    Delta,
    DeltaWriter,
    MetadataDelta,
    PartDelta,
    StopReason,
    TextDelta,
    Tokens,
    deltas_of,
)
from gateway.contract.errors import InvalidStateError
from gateway.contract.events import AgentEvent, AgentEventMapper, MessagesEvent
from gateway.contract.messages import (
    Message,
    Metadata,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    is_said,
    sound,
    without_notices,
)
from gateway.contract.plugin import TurnContext
from gateway.contract.provider import TurnOptions
from gateway.events.types import AgentProgress
from gateway.extensions.generation import Generation, Lease
from gateway.session.frames import Frame, TurnStart
from gateway.session.session import Commit, Session
from gateway.store.inbox import Entry

T = TypeVar("T")

_METADATA_SECONDS = 0.5
"""Seconds between two metadata deltas; ``complete`` carries the newest values anyway."""

_MAX_TOKENS = 1 << 40
_MAX_DOLLARS = 1e6
"""Limits of what a backend can plausibly report for one call."""


class TurnUsage:
    """Usage of a turn so far: tokens, US dollars, and the last model and provider."""

    __slots__ = ("cached_tokens", "cost", "input_tokens", "model", "output_tokens", "provider")

    def __init__(self) -> None:
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.cost: Decimal | None = None
        self.model: str | None = None
        self.provider: str | None = None

    def add(self, tokens: Tokens, cost: Decimal | None) -> None:
        """Add a model call, or all calls of a nested run."""
        self.input_tokens += tokens.input
        self.output_tokens += tokens.output
        self.cached_tokens += tokens.cached
        if cost is not None:
            self.cost = (self.cost or 0) + cost

    @property
    def tokens(self) -> Tokens:
        """The tokens so far."""
        return Tokens(self.input_tokens, self.output_tokens, self.cached_tokens)


def clamp_usage(call: MetadataDelta) -> MetadataDelta:
    """Return a backend's report of tokens and cost, clamped to plausible values."""
    counts = (call.input_tokens, call.output_tokens, call.cached_tokens, call.cache_write_tokens)
    # A report beyond these would overflow the columns of the database, and the answer would be lost.
    if all(0 <= count <= _MAX_TOKENS for count in counts) and 0 <= call.cost <= _MAX_DOLLARS:
        return call
    sent, got, cached, written = (min(max(count, 0), _MAX_TOKENS) for count in counts)
    cost = call.cost if 0 <= call.cost <= _MAX_DOLLARS else 0.0
    return MetadataDelta(call.message_id, sent, got, cost, cached, call.rate_limit, written)


class RunOverrides(Struct, frozen=True):
    """Overrides of a nested run: its task, tools, prompt and model (None: those of its agent)."""

    task: str = ""
    tools: frozenset[str] | None = None
    system_prompt: str | None = None
    model: str | None = None

    def narrow_tools(self, tools: Collection[str] | None) -> frozenset[str] | None:
        """Return the tools for a run within this one: never more than this one has."""
        if tools is None or self.tools is None:
            return self.tools if tools is None else frozenset(tools)
        return self.tools & frozenset(tools)


class TurnQuestions:
    """The questions of one message; nested runs share it with their turn.

    ``used`` are the ids of questions whose answers this turn has used, ``unrecorded`` those of them whose
    call is not recorded yet, by the key of the call. ``asked`` is set if stored questions have to be removed
    when the message is answered. ``numbers`` counts the questions of each kind, for their keys.
    """

    def __init__(self, inbox_id: str) -> None:
        self.inbox_id = inbox_id
        self.used: set[str] = set()
        self.unrecorded = defaultdict[str, list[str]](list)
        self.asked = False
        self.numbers: Counter[str] = Counter()


class Turn:
    """One run of the agent for one accepted message.

    ``emit`` passes every delta to the assembler and to the session's readers. ``clock`` returns seconds.
    ``lease`` is its hold on the plugins, which nested runs share; None for a turn that calls no plugin.
    """

    durable = True
    """The effects of its tools are recorded, so that a crash does not repeat them."""
    purpose = ""
    """The task of a nested run in plain words, for the questions that it asks; empty for others."""
    plugin = ""
    """The plugin whose own model call it is; empty for all turns of messages."""
    plugin_limit: float | None = None
    """The limit of this plugin's cost in the session, in US dollars; None without a limit."""
    runs = 0
    """Number of all nested runs for its message, at every depth."""
    depth = 0
    start_seq = 0
    """Sequence number of its ``turn_start``."""
    delta_count = 0
    """Number of its deltas."""
    plans_only = False
    """Its agent, or that of the turn it belongs to, may only use tools that change nothing."""

    def __init__(
        self,
        session: Session,
        entry: Entry,
        clock: Callable[[], float] = time.monotonic,
        role: SenderRole = "user",
        agent: str = "main",
        lease: Lease | None = None,
    ) -> None:
        self.session, self.entry, self.lease = session, entry, lease
        self.message_id = entry.answer_id
        self.writer = DeltaWriter(self.message_id)
        self.assembler = Assembler(session.id, self.message_id)
        self._redaction = session.redactor.start_message()
        self.usage = TurnUsage()
        self.steps_written = 0
        self.shown: list[tuple[int, Message]] = []
        """Messages shown at the start of the turn, by number; committed together with the answer."""
        self.committed = False
        self.commit: Commit | None = None
        """The commit of its outcome, once it is under way."""
        self.answer_id = self.message_id
        """Id of the answer that its changes of files belong to; a nested run has that of its parent."""
        self.changed_files = defaultdict[str, list[str]](list)
        """Paths that tools changed, by the key of the call; nested runs share it."""
        self.ctx = TurnContext(session.id, entry.inbound.sender, session.bus, entry.inbound, agent, role)
        self._clock, self._started = clock, clock()
        # The first report is due at once.
        self._metadata_at = -_METADATA_SECONDS + self._started
        self._task: asyncio.Task[object] | None = None
        self._event_mapper = AgentEventMapper()
        self.questions = TurnQuestions(entry.id)
        self.worker: asyncio.Task[Any] | None = None
        """The task that answers the message; a shutdown cancels it while the turn waits for a user."""
        self.overrides = RunOverrides()
        self.options = entry.inbound.options or TurnOptions()
        """Options of its model calls, as the sender's message sets them."""
        self.agent = agent
        """Name of the agent that provides its settings."""
        self.model = ""
        """Full name of the model that its calls are meant for; a fallback may answer instead."""
        self.part_seqs: dict[int, int] = {}
        """Number of the first delta, by part."""
        self.last_seqs: dict[int, int] = {}
        """Number of the last delta, by part: calls and results of tools grow side by side."""
        self.rewrite_seq = 0
        """Number of the last delta that changed shown content instead of adding to it."""
        self.run_slots: dict[int, asyncio.Semaphore] = {}
        """Limits of the nested runs at the same time, in a turn that is not nested, by depth."""
        self.children: set[Turn] = set()
        """Running nested runs; they end with the turn."""
        self.injected: tuple[Message, ...] = ()
        """Messages of plugins for this turn; they are shown at its start."""
        self.steered = entry.interrupted == "steered"
        """The user wrote again during the turn; with ``steer`` the turn ends at its next boundary."""
        self.aborted = False
        self.first_text_seconds: float | None = None
        """Seconds from the start of the turn to the first text of the answer."""

    @property
    def root(self) -> Turn:
        """The turn of the user's message: itself, or the one that this nested run works for."""
        return self

    @property
    def plugins(self) -> Generation:
        """The plugins that this turn uses now. Raises InvalidStateError without a lease."""
        if self.lease is None:
            raise InvalidStateError("the turn has no lease of plugins")
        return self.lease.generation

    def add_child(self, child: Turn) -> None:
        """Add a running nested run."""
        # The first one takes the place of this turn, which waits for it.
        if self.lease is not None and self.children:
            self.lease.branches += 1
        self.children.add(child)

    def remove_child(self, child: Turn) -> None:
        """Remove a nested run that ended."""
        self.children.discard(child)
        if self.lease is not None and self.children:
            self.lease.branches -= 1

    def pinned(self) -> AbstractContextManager[None]:
        """Mark that a command or an agent loop of a plugin runs; see ``Lease.pinned``."""
        return nullcontext() if self.lease is None else self.lease.pinned()

    def waiting(self) -> AbstractContextManager[None]:
        """Mark that this turn, or one of its nested runs, waits for a person."""
        return nullcontext() if self.lease is None else self.lease.waiting()

    @property
    def is_repeated(self) -> bool:
        """Return whether an earlier attempt may have recorded tool steps and decisions."""
        return self.entry.has_steps

    @property
    def is_read_only(self) -> bool:
        """Return whether it may only use tools that change nothing; a user may end that during the turn."""
        return self.plans_only or self.session.row.mode == "plan"

    @property
    def is_untrusted(self) -> bool:
        """Return whether its model sees content of a person who may not use the bot."""
        return self.session.is_untrusted

    @property
    def holds_others_content(self) -> bool:
        """Return whether its model sees content of others that a tool has read."""
        return self.session.holds_others_content

    @property
    def sender(self) -> Sender:
        """The sender of the message."""
        return self.entry.inbound.sender

    @property
    def address(self) -> Address:
        """The address of the answer."""
        return self.entry.inbound.address

    def emit(self, delta: Delta) -> None:
        """Assemble one delta and show it, with configured secrets masked."""
        if self._redaction is None:
            self._apply(delta)
            return
        for each in self._redaction.redact(delta):
            self._apply(each)

    def flush(self) -> None:
        """Show text that was held back because a secret might have started with it."""
        if self._redaction is not None:
            for each in self._redaction.flush():
                self._apply(each)

    def _apply(self, delta: Delta) -> None:
        # ASCII text cannot contain lone surrogates; this check is cheaper than a scan of every delta.
        if not (isinstance(delta, TextDelta) and delta.content.isascii()):
            delta = sound(delta)
        self.assembler.apply(delta)
        self.delta_count += 1
        if self.first_text_seconds is None and isinstance(delta, TextDelta) and delta.kind != "notice":
            self.first_text_seconds = self._clock() - self._started
        # Readers need usage only now and then, though providers may report it with every token, and never
        # the state of a model's reasoning.
        if self.entry.aside or (isinstance(delta, MetadataDelta) and not self._is_due(delta)):
            return
        if isinstance(delta, PartDelta) and getattr(delta.part, "state", None):
            return
        self._record_position(delta, self.session.publish(delta))
        if self.session.events.wants(AgentProgress, self.session.id):
            self._event_mapper.convert(delta, self.notify)

    def _record_position(self, delta: Delta, seq: int) -> None:
        """Record the number at which each part started, so that readers can resume in the middle."""
        index: int | None = getattr(delta, "part_index", None)
        if index is None:
            return
        self.last_seqs[index] = seq
        if index not in self.part_seqs:
            self.part_seqs[index] = seq
        # A part delta replaces its part; readers that saw the old one cannot continue in the middle.
        elif isinstance(delta, PartDelta) and not isinstance(delta.part, ToolResultPart):
            self.rewrite_seq = seq

    @property
    def start_frame(self) -> TurnStart:
        """The frame that announces the answer."""
        return TurnStart(self.message_id, self.entry.id, max(1, self.entry.attempts))

    def replay(self, after: int, characters: int | None) -> list[tuple[int, Frame]]:
        """Return the frames missing after number ``after``, each with the number at which it was new.

        With ``characters`` the text part that was running at ``after`` continues from there, if everything
        shown until then is still valid; else the whole answer is repeated.
        """
        rest = None if characters is None else self._find_missing(after, characters)
        frames: list[Frame] = [self.start_frame, *self.assembler.snapshot()] if rest is None else [*rest]
        least = 0 if rest is None else after
        return [(max(self._seq_of(frame), least), frame) for frame in frames]

    def _find_missing(self, after: int, characters: int) -> list[Delta] | None:
        """Return the deltas missing after number ``after`` and that many characters of the part running then.

        None if the reader has to start again: it saw nothing of this answer, or shown content has changed
        since.
        """
        if not self.start_seq <= after or self.rewrite_seq > after:
            return None
        running = max((index for index, seq in self.part_seqs.items() if seq <= after), default=-1)
        missed: list[Delta] = []
        for delta in self.assembler.snapshot():
            index: int | None = getattr(delta, "part_index", None)
            if index == running and isinstance(delta, TextDelta):
                if rest := delta.content[characters:]:
                    missed.append(msgspec.structs.replace(delta, content=rest))
            elif index is None or index >= running or self.last_seqs[index] > after:
                missed.append(delta)
        return missed

    def _seq_of(self, frame: Frame) -> int:
        """Return the number at which a frame was new; for a delta of a part, the start of the part."""
        if isinstance(frame, TurnStart):
            return self.start_seq
        return self.part_seqs.get(getattr(frame, "part_index", -1), self.session.seq)

    @property
    def usage_is_due(self) -> bool:
        """Return whether the usage has not been shown for a while."""
        return self._clock() - self._metadata_at >= _METADATA_SECONDS

    def _is_due(self, delta: MetadataDelta) -> bool:
        """Return whether to show a usage report; a rate limit is always shown."""
        if delta.rate_limit is None and not self.usage_is_due:
            return False
        self._metadata_at = self._clock()
        return True

    @property
    def has_content(self) -> bool:
        """Return whether the answer contains anything but reasoning and notices, which chats may not show."""
        parts = (part for _, part in self.assembler.parts_from(0))
        return any(not isinstance(part, TextPart) or is_said(part.kind) for part in parts)

    def emit_part(self, part: Part) -> None:
        """Add a complete part after all others."""
        self.flush()
        for delta in deltas_of(part, self.message_id, self.assembler.next_index):
            self.emit(delta)
        # The writer numbers the parts of later deltas, and does not see this one.
        self.writer.skip_to(self.assembler.next_index)

    def transcript(self) -> tuple[Message, ...]:
        """Return the model's input: the session, the new messages, and the answer so far.

        If the answer holds nothing for the model yet, the last message is the user's: many services refuse a
        conversation that ends with a message of the assistant.
        """
        self.flush()
        messages = self.session.model_view()
        if self.assembler.next_index:
            answer = without_notices(self.assembler.message())
            messages = (*messages, answer) if answer is not None and answer.parts else messages
        return messages

    def tool_call_ids(self) -> frozenset[str]:
        """Return the ids of the answer's tool calls so far."""
        if not self.assembler.next_index:
            return frozenset()
        parts = self.assembler.parts_from(0)
        return frozenset(part.tool_call_id for _, part in parts if isinstance(part, ToolCallPart))

    def notify(self, event: AgentEvent) -> None:
        """Notify the session's listeners of an event of the run."""
        if self.session.events.wants(AgentProgress, self.session.id):
            self.session.events.emit(AgentProgress(self.session.id, event))

    def notify_messages(self) -> None:
        """Notify the session's listeners of the whole transcript."""
        if self.session.events.wants(AgentProgress, self.session.id):
            self.notify(MessagesEvent(self.transcript()))

    def abort(self) -> None:
        """End the turn as soon as possible; its content so far is kept."""
        self.aborted = True
        # Before its children: a task group that it waits for then cancels them, too, before the first of the
        # two cancellations reaches them. Later it would interrupt what they do at their end.
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for child in self.children:
            child.abort()

    async def run_abortable(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run work that ``abort`` ends; None if it did. A cancellation from elsewhere passes through."""
        if self.aborted:
            # An unawaited coroutine would warn.
            work.close()
            return None
        self._task = task = cast("asyncio.Task[object]", asyncio.current_task())
        try:
            outcome = await work
            if not self.aborted:
                return outcome
        except asyncio.CancelledError:
            if not self.aborted:
                raise
        finally:
            self._task = None
        # Also if the work hid the cancellation: otherwise it would count for the session's next messages.
        # Shutdown may cancel at the same time: a remaining request means this is not only our abort.
        if task.uncancel():
            raise asyncio.CancelledError
        return None

    def build_message(self, stop_reason: StopReason) -> Message:
        """Return the finished message."""
        self.flush()
        tally = self.usage
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


calling: ContextVar[str] = ContextVar("calling", default="")
"""The key of the tool call that the current task works for, if any."""

running: ContextVar[Turn | None] = ContextVar("running", default=None)
"""The turn that the current task works for, if any."""
