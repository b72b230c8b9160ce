"""Nested runs: a tool lets the agent work on a task of its own, and gets back what it said.

A nested run has the hooks, permissions and approvals of the turn it belongs to, never more tools than
that turn, and ends with it. It is told to nobody but the activity bus; nothing of it is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec

from gateway.bus import ActivityBus
from gateway.deltas import Delta, StopReason, TextDelta, ToolCallStart, ToolResultEnd
from gateway.errors import ToolError
from gateway.events import AgentEvent, SubAgentEvent, SubAgentKind
from gateway.messages import ErrorPart, Message, TextPart, ToolResultPart, new_id, now_ms
from gateway.routing import Agents
from gateway.session import Brief, Turn

DEEPEST = 3
"""How deep runs may nest: a run in a run in a run."""

RunTurn = Callable[[Turn], Awaitable[StopReason]]


class NestedTurn(Turn):
    """A turn that is shown to nobody: its transcript is its task and what it said so far."""

    durable = False

    def __init__(self, parent: Turn, entry_id: str, brief: Brief, agent: str, bus: ActivityBus) -> None:
        entry = msgspec.structs.replace(
            parent.entry, id=entry_id, answer_id=new_id(), attempts=1, merged=(), late=False
        )
        super().__init__(parent.session, entry, agent=parent.agent)
        self.parent = parent
        self.brief = brief
        self.depth = parent.depth + 1
        self.asked = parent.asked
        self.ctx = msgspec.structs.replace(parent.ctx, agent=agent)
        self._bus = bus

    def emit(self, delta: Delta) -> None:
        """Take one delta in and tell what it amounts to."""
        self.assembler.apply(delta)
        match delta:
            case TextDelta(kind="text"):
                self.step("text_delta", {"text": delta.content})
            case ToolCallStart():
                self.step("tool_call_start", {"id": delta.tool_call_id, "name": delta.tool_name})
            case ToolResultEnd():
                self.step("tool_call_end", {"id": delta.tool_call_id, "is_error": delta.is_error})
            case _:
                pass

    def step(self, kind: SubAgentKind, data: Mapping[str, Any]) -> None:
        """Tell a step of the run."""
        parent = self.parent.entry.id if self.depth > 1 else None
        told = {"session": self.session.id, **data}
        self._bus.emit_sub_agent(SubAgentEvent(self.entry.id, parent, self.ctx.agent, kind, now_ms(), told))

    def transcript(self) -> tuple[Message, ...]:
        """The task, and what the answer holds so far."""
        task = Message(session_id=self.session.id, role="user", parts=(TextPart(self.brief.task),))
        return (task, self.assembler.message()) if self.assembler.next_index else (task,)

    def tell(self, event: AgentEvent) -> None:
        """Agent events are the session's own; a nested run has none."""

    def tell_messages(self) -> None:
        """Nor is its transcript told."""


class Nested:
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
        """Work on a task with some of the turn's tools (None: all) and return the last words of the run.

        Where ``agent`` is one of the settings, they say what is not said here.

        Raises ToolError when the run fails, says nothing, or would nest too deep.
        """
        parent = self._parent
        if parent.depth >= DEEPEST:
            raise ToolError(f"runs may be nested {DEEPEST} deep")
        brief = self._brief(task, agent, tools, system_prompt, model)
        run_id = f"{parent.entry.id}:{self._call_id}:{next(self._numbers)}"
        turn = NestedTurn(parent, run_id, brief, agent, self._activity)
        if agent in self._agents.all:
            turn.agent = agent
        parent.children.add(turn)
        try:
            return await self._told(turn)
        finally:
            parent.children.discard(turn)
            parent.tally.include(turn.tally)

    def _brief(
        self,
        task: str,
        agent: str,
        tools: Collection[str] | None,
        system_prompt: str | None,
        model: str | None,
    ) -> Brief:
        parent = self._parent.brief
        named = self._agents.all.get(agent)
        allowed = parent.narrowed(tools)
        if named is None:
            return Brief(task, allowed, system_prompt, model or parent.model)
        allowed = named.tools if allowed is None else Brief(tools=allowed).narrowed(named.tools)
        return Brief(task, allowed, system_prompt, model or named.model or parent.model)

    async def _told(self, turn: NestedTurn) -> str:
        """Run the turn and tell its beginning and its end, whatever the end is."""
        agent, outcome = turn.ctx.agent, "aborted"
        self._activity.emit("task_started", agent, turn.brief.task)
        turn.step("invocation_start", {"task": turn.brief.task})
        try:
            stop = await self._run(turn)
            said = last_words(turn.result(stop))
            turn.step("message_end", {"content": said})
            outcome = "done"
            return said
        except ToolError:
            outcome = "failed"
            raise
        finally:
            turn.step("invocation_end", {"outcome": outcome})
            self._activity.emit("task_completed" if outcome == "done" else "task_error", agent, outcome)


def last_words(answer: Message) -> str:
    """The text behind the last tool result. Raises ToolError when there is none, or an error instead."""
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
