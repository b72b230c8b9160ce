"""Work status: what runs, in the status line, and a note after an answer that took long.

In: ``[plugins.work_status]``. Out: a status segment and a key that hides it, notes in the session, a line for
the model after a stopped answer, and metrics. The plugin loader imports it.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pydantic import BaseModel, Field, field_validator

from gateway import (
    Activity,
    AgentEndReason,
    AgentEvent,
    Message,
    Plugin,
    PluginContext,
    StatusSegment,
    TextPart,
    TurnContext,
    UsageEvent,
)
from gateway.api import Display, Figure
from gateway.events import SubAgentEvent, TurnFinished

NOTE = "work_status.note"
"""The type of the messages that the plugin appends."""
SLOW = Display(badge="slow", color="yellow")
_KEY = re.compile(r"f\d{1,2}|(?=.+\+)(ctrl\+)?(alt\+)?(meta\+)?(shift\+)?([^\s+A-Z]|[a-z]{2,})")


class WorkStatusSettings(BaseModel):
    """The settings of the plugin."""

    note_after_seconds: float = Field(
        default=60, ge=0, description="Append a note to answers that took at least this long; default 60"
    )
    shortcut: str = Field(default="alt+w", description='Key that shows or hides the tools; default "alt+w"')

    @field_validator("shortcut")
    @classmethod
    def _named(cls, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ValueError('is not a key with ctrl, alt or meta; write it in lower case, such as "alt+w"')
        return key


class _Run:
    """A running answer: when it began, its tokens so far, and how to stop listening."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.tokens = 0
        self.unsubscribe: Callable[[], None] = lambda: None

    def hear(self, event: AgentEvent) -> None:
        if isinstance(event, UsageEvent):
            self.tokens += event.total_tokens


class WorkStatus(Plugin):
    """Reports on running tools and long answers, for the people who wait for them."""

    name = "work_status"
    settings_model = WorkStatusSettings

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._tools: Counter[str] = Counter()
        self._nested: dict[str, str] = {}
        """The agents of the nested runs, by the id of the run."""
        self._runs: defaultdict[str, list[_Run]] = defaultdict(list)
        self._hidden = False
        self._finished: Counter[str] = Counter()
        self._seconds = 0.0

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings, and listen to what agents and tools do."""
        self._settings = ctx.options(WorkStatusSettings)
        self._ctx = ctx
        ctx.register_shortcut(self._settings.shortcut, self._toggle)
        ctx.register_message_renderer(NOTE, lambda message: f"*{message.text}*")
        if ctx.activity is not None:
            ctx.activity.subscribe(self._hear)
            ctx.activity.subscribe_sub_agent(self._step)
        if ctx.events is not None:
            ctx.events.subscribe(TurnFinished, self._count)

    def figures(self) -> Sequence[Figure]:
        """Return the running tools and nested agents, and the number and the duration of the answers."""
        tools = [
            Figure("running_tools", "Running calls", count, labels={"tool": name})
            for name, count in sorted((+self._tools).items())
        ]
        agents = [
            Figure("nested_runs", "Running nested agents", count, labels={"agent": name})
            for name, count in sorted(Counter(self._nested.values()).items())
        ]
        outcomes = [
            Figure("answers", "Finished answers", count, "counter", {"outcome": name})
            for name, count in sorted(self._finished.items())
        ]
        return [
            *tools,
            *agents,
            *outcomes,
            Figure("seconds", "Time spent on answers", self._seconds, "counter"),
        ]

    def _count(self, finished: TurnFinished) -> None:
        self._finished[finished.outcome] += 1

    async def after_agent_run(self, reason: AgentEndReason, ctx: TurnContext) -> None:
        """Note a long answer for readers, and a stopped one for the model."""
        runs = self._runs[ctx.session]
        run = runs.pop()
        run.unsubscribe()
        if runs:  # a nested run ended; its answer is still being made
            return
        del self._runs[ctx.session]
        seconds = self._clock() - run.began
        self._seconds += seconds
        if reason == "aborted":
            text = TextPart(f"(The user stopped the previous answer after {seconds:.0f} s.)")
            ctx.messages.inject_next(Message(session_id=ctx.session, role="user", parts=(text,)))
        elif seconds >= self._settings.note_after_seconds:
            text = TextPart(f"Answered in {seconds:.0f} s with {run.tokens:,} tokens.")
            note = Message(
                session_id=ctx.session, role="assistant", parts=(text,), custom_type=NOTE, display=SLOW
            )
            ctx.messages.append(note)

    def _hear(self, activity: Activity) -> None:
        if activity.kind == "agent_start":
            self._begin(activity.summary)
        elif activity.kind in ("tool_start", "tool_end"):
            self._tools[activity.source] += 1 if activity.kind == "tool_start" else -1
            self._show()

    def _step(self, step: SubAgentEvent) -> None:
        if step.kind == "invocation_start":
            self._nested[step.run_id] = step.agent_id
        elif step.kind == "invocation_end":
            self._nested.pop(step.run_id, None)
        else:
            return
        self._show()

    def _begin(self, session_id: str) -> None:
        run = _Run(self._clock())
        session = self._ctx.sessions.get(session_id) if self._ctx.sessions else None
        if session is not None and not self._runs[session_id]:
            run.unsubscribe = session.subscribe(run.hear)
        self._runs[session_id].append(run)

    def _toggle(self) -> None:
        self._hidden = not self._hidden
        self._show()

    def _show(self) -> None:
        self._tools = +self._tools
        running = self._tools + Counter(f"agent {name}" for name in self._nested.values())
        names = [name if count == 1 else f"{count} {name}" for name, count in sorted(running.items())]
        tools = ", ".join(names)
        shown = StatusSegment(f"running {tools}", dim=True, texts={"de": f"läuft: {tools}"})
        self._ctx.set_status_line([shown] if names and not self._hidden else [])


plugin = WorkStatus()
