"""Nested runs: a tool lets the agent work on a separate task, and gets the final text back.

A nested run is a turn in its own session, which is stored, can be read while it runs, and can be given
another task later. It has the hooks, permissions and approvals of its parent turn, never more tools than the
parent, asks its questions in the parent's chat, and ends with it. It delivers nothing to a chat.

Its ids follow from its parent's message, the tool call and the task. So a parent that is repeated after a
crash finds the answer of a run that had ended, and continues another one from its recorded steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, assert_never

import msgspec

from gateway.access.questions import SERVER
from gateway.contract.channel import Address
from gateway.contract.deltas import (
    Complete,
    Delta,
    MetadataDelta,
    PartDelta,
    StopReason,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
    ToolResultStart,
)
from gateway.contract.errors import NotFoundError, ToolError
from gateway.contract.events import SubAgentEvent, SubAgentKind
from gateway.contract.messages import ErrorPart, Message, TextPart, ToolResultPart, now_ms
from gateway.contract.provider import TurnOptions
from gateway.events.bus import ActivityBus
from gateway.events.types import AgentCompleted, AgentCreated, AgentFailed, AgentRole, AgentStarted
from gateway.extensions.deadlines import paused
from gateway.models import Agents
from gateway.session import RunOverrides, Session, Sessions, Turn, calling
from gateway.store.steps import DROP_STEPS

MAX_DEPTH = 3
"""Maximum depth of nested runs: a run within a run within a run."""
MOST_AT_ONCE, MOST_RUNS = 10, 100
"""Maximum numbers of nested runs for one message: at the same time in one depth, and in all."""
_DESCRIPTION = 80
_UNSAFE = re.compile(r"[^\w\s.,:;()'/-]")
"""Characters that could be markup in the chat of a question."""

RunTurn = Callable[[Turn], Awaitable[StopReason]]


class NestedRuns:
    """Starts the nested runs of turns, stores them, and ends those that a crash or a timeout left."""

    def __init__(self, run: RunTurn, sessions: Sessions, agents: Agents, activity: ActivityBus) -> None:
        self.run = run
        self.sessions = sessions
        self.agents = agents
        self.activity = activity

    def of(self, turn: Turn, call_id: str) -> NestedRunner:
        """Return the function that starts nested runs for a tool call of a turn."""
        return NestedRunner(self, turn, call_id)

    async def commit(self, turn: NestedTurn, stop: StopReason) -> Message:
        """Commit the answer of a run, and remove its recorded steps. Returns the answer."""
        dropped = (DROP_STEPS, (turn.entry.id,))
        # Perhaps that of an earlier call: an abort may have interrupted the wait for it.
        seq, answer = (await turn.session.commit(turn, turn.build_message(stop), [dropped]))[-1]
        turn.session.complete(answer, seq, Complete(answer.id, answer.metadata, stop))
        return answer

    async def close(self, turn: Turn, recall: Callable[[Turn], Awaitable[None]]) -> None:
        """End the runs of a turn that ends without them. Their answers are what they had recorded."""
        if turn.depth or not (turn.runs or turn.is_repeated):
            return
        for session_id, message_id in await self.sessions.unfinished(turn.session.id):
            session = await self.sessions.find(session_id)
            # A tool may have left a task that still runs.
            if session.turn is not None:
                continue
            left = NestedTurn(turn, session, message_id, RunOverrides(), session.row.agent or "", "")
            # It may have ended after the list was read.
            if any(message.id == left.message_id for message in session.messages()):
                continue
            left.entry.has_steps = True
            session.begin(left, ())
            try:
                await recall(left)
                await self.commit(left, "cancelled")
            finally:
                session.finish(left)


class NestedRunner:
    """Starts nested runs for one tool call of a turn."""

    def __init__(self, runs: NestedRuns, parent: Turn, call_id: str) -> None:
        self.sessions: list[str] = []
        """The sessions of its runs, in the order in which they began."""
        self._runs = runs
        self._parent = parent
        self._call_id = call_id
        self._numbers = Counter[str]()

    async def __call__(
        self,
        task: str,
        *,
        agent: str = "sub",
        tools: Collection[str] | None = None,
        system_prompt: str | None = None,
        model: str | None = None,
        description: str = "",
        session: str | None = None,
    ) -> str:
        """Work on a task with some of the turn's tools (None: all). Returns the final text of the run.

        If ``agent`` is one of the settings, its settings apply where an argument is None. ``description``
        names the task for users. ``session`` is that of an earlier run of this conversation, to continue it.

        Raises ToolError when the run fails, says nothing, would nest too deep or be one too many, and for a
        session that is not one of this conversation or still runs.
        """
        parent, root = self._parent, self._parent.root
        if not task.strip():
            raise ToolError("the task is empty")
        if parent.depth >= MAX_DEPTH:
            raise ToolError(f"runs may be nested {MAX_DEPTH} deep")
        if root.runs >= MOST_RUNS:
            raise ToolError(f"one message may start at most {MOST_RUNS} nested runs")
        root.runs += 1
        overrides = self._overrides(task, agent, tools, system_prompt, model)
        description = _plain(description or task)
        run_id, before = self._run_id(overrides, agent, session), calling.get()
        # Of its depth only: a run that waits for those within it must not keep them from beginning.
        slots = root.run_slots.setdefault(parent.depth, asyncio.Semaphore(MOST_AT_ONCE))
        try:
            # The time of a nested run does not count against the time limit of the tool that started it.
            with paused():
                async with slots:
                    opened = await self._open(run_id, session, agent, description)
                    turn = NestedTurn(parent, opened, run_id, overrides, agent, description)
                    if agent in self._runs.agents.all:
                        turn.agent = agent
                    try:
                        return await self._run_once(turn)
                    finally:
                        opened.pending -= 1
        finally:
            calling.set(before)

    def _run_id(self, overrides: RunOverrides, agent: str, session: str | None) -> str:
        """Return the id of a run and of its task's message: the same if the call is repeated."""
        # By content, because a tool may start several runs in another order when it is repeated.
        tools = None if overrides.tools is None else sorted(overrides.tools)
        about = (overrides.task, agent, tools, overrides.system_prompt, session)
        digest = hashlib.sha256(msgspec.json.encode(about)).hexdigest()
        self._numbers[digest] += 1
        name = (self._parent.entry.id, self._call_id, digest, str(self._numbers[digest]))
        return str(uuid.uuid5(uuid.NAMESPACE_OID, ":".join(name)))

    def _overrides(
        self,
        task: str,
        agent: str,
        tools: Collection[str] | None,
        system_prompt: str | None,
        model: str | None,
    ) -> RunOverrides:
        parent = self._parent.overrides
        named = self._runs.agents.all.get(agent)
        allowed = parent.narrow_tools(tools)
        if named is None:
            return RunOverrides(task, allowed, system_prompt, model or parent.model)
        allowed = named.tools if allowed is None else RunOverrides(tools=allowed).narrow_tools(named.tools)
        return RunOverrides(task, allowed, system_prompt, model or named.model or parent.model)

    async def _open(self, run_id: str, wanted: str | None, agent: str, description: str) -> Session:
        """Return the session for a run, reserved for it: a new one, or the earlier one that is wanted."""
        root = self._parent.root.session
        session: Session | None = None
        if wanted is None:
            session_id = f"task-{run_id.replace('-', '')[:16]}"
            address = Address(SERVER, chat=session_id)
            session = await self._runs.sessions.get_or_create(
                session_id, channel=SERVER, owner=root.row.owner, address=address
            )
            row = session.row
            if not session.saved:
                row.parent, row.parent_message = self._parent.session.id, self._parent.message_id
                row.root, row.call_id = root.id, self._call_id
                row.title, row.titled = f"{description} (@{agent})", "user"
        else:
            with suppress(NotFoundError):
                session = await self._runs.sessions.find(wanted)
        # The same error for a session of another conversation: this one must not learn that it exists.
        if session is None or session.row.root != root.id:
            raise ToolError(f"no task session {wanted!r} in this conversation; leave it out for a new one")
        if session.turn is not None or session.pending:
            raise ToolError(f"the task session {session.id!r} is still running")
        session.pending += 1
        session.row.agent = agent
        self.sessions.append(session.id)
        if wanted is None and not session.saved and session.events.wants(AgentCreated, root.id):
            role = AgentRole(agent, self._parent.model)
            session.events.emit(AgentCreated(root.id, role, self._parent.session.id, description))
        return session

    async def _run_once(self, turn: NestedTurn) -> str:
        """Run a turn, unless it had ended before a crash. Returns its final text."""
        parent, session = self._parent, turn.session
        known = {message.id: message for message in session.messages()}
        answer = known.get(turn.message_id)
        if answer is None:
            if turn.entry.id not in known:
                await session.add_message(turn.task_message(), [session.row.put_lineage()])
                session.saved = session.numbers_reserved = True
            answer = await self._run(turn)
        parent.session.has_read_others |= turn.holds_others_content
        return final_text(answer)

    async def _run(self, turn: NestedTurn) -> Message:
        """Run a turn as a child of its parent, and commit and report its end however it ends."""
        parent, session, agent, outcome = self._parent, turn.session, turn.ctx.agent, "aborted"
        session.begin(turn, ())
        session.has_read_others = parent.holds_others_content
        # Registered with its parent, whose abort ends it, too.
        parent.add_child(turn)
        if parent.aborted:
            turn.abort()
        self._runs.activity.emit("task_started", agent, turn.overrides.task)
        turn.report_step("invocation_start", {"task": turn.overrides.task})
        try:
            answer = await self._runs.commit(turn, await self._runs.run(turn))
            outcome = "failed"
            with suppress(ToolError):
                turn.report_step("message_end", {"content": final_text(answer)})
                outcome = "done"
            return answer
        finally:
            # The abort of a parent in the same task passes through; what the run said is kept.
            if turn.aborted and not turn.committed:
                await self._runs.commit(turn, "cancelled")
            session.finish(turn)
            parent.remove_child(turn)
            parent.usage.add(turn.usage.tokens, turn.usage.cost)
            turn.report_step("invocation_end", {"outcome": outcome})
            self._runs.activity.emit("task_completed" if outcome == "done" else "task_error", agent, outcome)


class NestedTurn(Turn):
    """A turn that works for another one, in its own session."""

    def __init__(
        self,
        parent: Turn,
        session: Session,
        entry_id: str,
        overrides: RunOverrides,
        agent: str,
        description: str,
    ) -> None:
        entry = msgspec.structs.replace(
            parent.entry,
            id=entry_id,
            answer_id=str(uuid.uuid5(uuid.UUID(entry_id), "answer")),
            session=session.id,
            attempts=1,
            merged=(),
            late=False,
            interrupted=None,
        )
        super().__init__(session, entry, agent=parent.agent, lease=parent.lease)
        self.parent = parent
        self.purpose = f'{parent.purpose} Task "{description}".'.strip()
        self.overrides = overrides
        self.options = TurnOptions()
        self.depth = parent.depth + 1
        self.plans_only = parent.plans_only
        # Shared with the parent: questions are asked in its chat, and an answer counts in both.
        self.questions = parent.questions
        self.answer_id, self.changed_files = parent.answer_id, parent.changed_files
        # Hooks see the conversation: what they keep or append for a chat belongs to it.
        self.ctx = msgspec.structs.replace(parent.ctx, agent=agent)

    @property
    def root(self) -> Turn:
        """The turn of the user's message that it works for."""
        return self.parent.root

    @property
    def is_read_only(self) -> bool:
        """Return whether it, or the turn it works for, may only use tools that change nothing."""
        return super().is_read_only or self.parent.is_read_only

    @property
    def is_untrusted(self) -> bool:
        """Return whether its model, or one that wrote its task, sees content of unauthorised users."""
        return super().is_untrusted or self.parent.is_untrusted

    @property
    def holds_others_content(self) -> bool:
        """Return whether its model, or one that wrote its task, sees content of others."""
        return super().holds_others_content or self.parent.holds_others_content

    def task_message(self) -> Message:
        """Return the message that gives the task."""
        task = (TextPart(self.overrides.task),)
        return Message(id=self.entry.id, session_id=self.session.id, role="user", parts=task)

    def _apply(self, delta: Delta) -> None:
        """Show one delta to readers, and report the steps that the activity bus knows."""
        super()._apply(delta)
        match delta:
            case TextDelta(kind="text"):
                self.report_step("text_delta", {"text": delta.content})
            case ToolCallStart():
                self.report_step("tool_call_start", {"id": delta.tool_call_id, "name": delta.tool_name})
            case ToolResultEnd():
                self.report_step("tool_call_end", {"id": delta.tool_call_id, "is_error": delta.is_error})
            case TextDelta() | ToolCallDelta() | ToolResultStart() | ToolResultDelta():
                pass
            case MetadataDelta() | PartDelta() | Complete():
                pass
            case _:
                assert_never(delta)

    def report_step(self, kind: SubAgentKind, data: Mapping[str, Any]) -> None:
        """Report a step of the run to the activity bus."""
        events = self.session.events
        if events.wants(SubAgentEvent):
            parent = self.parent.entry.id if self.depth > 1 else None
            step = {"session": self.root.session.id, **data}
            events.emit(SubAgentEvent(self.entry.id, parent, self.ctx.agent, kind, now_ms(), step))


def report_agent(turn: Turn, kind: type[AgentStarted | AgentCompleted | AgentFailed], **outcome: str) -> None:
    """Report that the agent of a turn began or ended, to subscribers of its conversation."""
    events, session = turn.session.events, turn.root.session.id
    if events.wants(kind, session):
        parent = turn.parent.session.id if isinstance(turn, NestedTurn) else ""
        agent = AgentRole(turn.ctx.agent, turn.model)
        events.emit(kind(session, agent, parent, turn.overrides.task, **outcome))


def report_end(turn: Turn, stop: StopReason) -> None:
    """Report that the agent of a turn ended: completed, or failed with an error."""
    parts = (part for _, part in turn.assembler.parts_from(0))
    failure = next((part.error_name for part in parts if isinstance(part, ErrorPart)), "")
    if stop == "cancelled" and failure and not turn.aborted:
        report_agent(turn, AgentFailed, outcome=failure)
    else:
        report_agent(turn, AgentCompleted, outcome="aborted" if turn.aborted else stop)


def final_text(answer: Message) -> str:
    """Return the text after the last tool result. Raises ToolError if there is none, or an error instead."""
    texts: list[str] = []
    for part in answer.parts:
        if isinstance(part, ErrorPart):
            raise ToolError(f"the nested run failed: {part.message}")
        if isinstance(part, ToolResultPart):
            texts.clear()
        elif isinstance(part, TextPart) and part.kind == "text":
            texts.append(part.content)
    if not texts:
        raise ToolError("the nested run gave no answer")
    return "\n\n".join(texts)


def _plain(text: str) -> str:
    """Return the beginning of a description as one line without markup; a model may have written it."""
    line = " ".join(_UNSAFE.sub(" ", text).split())
    return line if len(line) <= _DESCRIPTION else f"{line[: _DESCRIPTION - 1].rstrip()}…"
