"""Nested runs: a tool lets the agent work on a task of its own, and gets the final text back.

A nested run has the hooks, permissions and approvals of its parent turn, never more tools than the parent,
and ends with it. Only the activity bus reports it; nothing of it is stored or shown in the session.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, assert_never

import msgspec

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
from gateway.contract.errors import ToolError
from gateway.contract.events import AgentEvent, SubAgentEvent, SubAgentKind
from gateway.contract.messages import (
    ErrorPart,
    Message,
    TextPart,
    ToolResultPart,
    model_context,
    new_id,
    now_ms,
)
from gateway.contract.provider import TurnOptions
from gateway.extensions.deadlines import paused
from gateway.models import Agents
from gateway.session import RunOverrides, Turn
from gateway.session.bus import ActivityBus

MAX_DEPTH = 3
"""Maximum depth of nested runs: a run within a run within a run."""

RunTurn = Callable[[Turn], Awaitable[StopReason]]


class NestedRunner:
    """Starts nested runs for one tool call of a turn."""

    def __init__(
        self, run: RunTurn, agents: Agents, activity: ActivityBus, parent: Turn, call_id: str
    ) -> None:
        self._run = run
        self._agents = agents
        self._activity = activity
        self._parent = parent
        self._call_id = call_id
        self._numbers = itertools.count(1)

    async def __call__(
        self,
        task: str,
        *,
        agent: str = "sub",
        tools: Collection[str] | None = None,
        system_prompt: str | None = None,
        model: str | None = None,
    ) -> str:
        """Work on a task with some of the turn's tools (None: all). Returns the final text of the run.

        If ``agent`` is one of the settings, its settings apply where an argument is None.

        Raises ToolError when the run fails, says nothing, or would nest too deep.
        """
        parent = self._parent
        if parent.depth >= MAX_DEPTH:
            raise ToolError(f"runs may be nested {MAX_DEPTH} deep")
        overrides = self._overrides(task, agent, tools, system_prompt, model)
        run_id = f"{parent.entry.id}:{self._call_id}:{next(self._numbers)}"
        turn = NestedTurn(parent, run_id, overrides, agent, self._activity)
        if agent in self._agents.all:
            turn.agent = agent
        # Registered with its parent, whose abort ends it, too.
        parent.children.add(turn)
        try:
            # The time of a nested run does not count against the time limit of the tool that started it.
            with paused():
                return await self._run_reported(turn)
        finally:
            parent.children.discard(turn)
            parent.usage.add_nested(turn.usage)

    def _overrides(
        self,
        task: str,
        agent: str,
        tools: Collection[str] | None,
        system_prompt: str | None,
        model: str | None,
    ) -> RunOverrides:
        parent = self._parent.overrides
        named = self._agents.all.get(agent)
        allowed = parent.narrow_tools(tools)
        if named is None:
            return RunOverrides(task, allowed, system_prompt, model or parent.model)
        allowed = named.tools if allowed is None else RunOverrides(tools=allowed).narrow_tools(named.tools)
        return RunOverrides(task, allowed, system_prompt, model or named.model or parent.model)

    async def _run_reported(self, turn: NestedTurn) -> str:
        """Run the turn, and report its beginning and its end however it ends."""
        agent, outcome = turn.ctx.agent, "aborted"
        self._activity.emit("task_started", agent, turn.overrides.task)
        turn.report_step("invocation_start", {"task": turn.overrides.task})
        try:
            stop = await self._run(turn)
            text = final_text(turn.build_message(stop))
            turn.report_step("message_end", {"content": text})
            outcome = "done"
            return text
        except ToolError:
            outcome = "failed"
            raise
        finally:
            turn.report_step("invocation_end", {"outcome": outcome})
            self._activity.emit("task_completed" if outcome == "done" else "task_error", agent, outcome)


class NestedTurn(Turn):
    """A turn without readers: its transcript is its task and its own output so far."""

    durable = False

    def __init__(
        self, parent: Turn, entry_id: str, overrides: RunOverrides, agent: str, bus: ActivityBus
    ) -> None:
        entry = msgspec.structs.replace(
            parent.entry, id=entry_id, answer_id=new_id(), attempts=1, merged=(), late=False
        )
        super().__init__(parent.session, entry, agent=parent.agent)
        self.parent = parent
        self.overrides = overrides
        self.options = TurnOptions()
        self.depth = parent.depth + 1
        # Shared with the parent: questions are asked in its chat, and a decision counts in both.
        self.asked = parent.asked
        self.decisions = parent.decisions
        self.ctx = msgspec.structs.replace(parent.ctx, agent=agent)
        self._bus = bus

    def _apply(self, delta: Delta) -> None:
        """Assemble one delta, and report the steps that the activity bus knows."""
        self.assembler.apply(delta)
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
        parent = self.parent.entry.id if self.depth > 1 else None
        event = {"session": self.session.id, **data}
        self._bus.emit_sub_agent(SubAgentEvent(self.entry.id, parent, self.ctx.agent, kind, now_ms(), event))

    def transcript(self) -> tuple[Message, ...]:
        """Return the task and the output so far."""
        task = Message(session_id=self.session.id, role="user", parts=(TextPart(self.overrides.task),))
        answer = self.assembler.message()
        return model_context((task, answer) if answer.parts else (task,))

    def notify(self, event: AgentEvent) -> None:
        """Drop an agent event: they belong to the session, and a nested run is not shown there."""

    def notify_messages(self) -> None:
        """Report no transcript, for the same reason."""


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
