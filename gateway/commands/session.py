"""The built-in slash commands, contributed like any plugin's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.contract.events import Activity
from gateway.contract.messages import Message
from gateway.contract.plugin import CommandContext, Plugin, PluginContext, SlashCommand, StatusSegment
from gateway.extensions.registry import PluginRegistry
from gateway.models import Agents
from gateway.session import Sessions

_STATUS_SECONDS = 0.1
"""Delay of the number of running turns in the status line."""


class Commands(Plugin):
    """/help, /stop, /new, /compact and /status."""

    name = "commands"
    _running = 0
    _shows_running = True
    _timer: asyncio.TimerHandle | None = None
    _set_status: Callable[[Sequence[StatusSegment]], None] | None = None

    def __init__(
        self, registry: PluginRegistry, sessions: Sessions, agents: Agents, default_model: Callable[[], str]
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._agents = agents
        self._default_model = default_model

    async def activate(self, ctx: PluginContext) -> None:
        """Show the number of running turns in the status line; register its shortcut and a renderer."""
        self._set_status = ctx.set_status_line
        ctx.register_shortcut("alt+r", self._toggle_running)
        ctx.register_message_renderer("notice", _notice)
        if ctx.activity is not None:
            ctx.activity.subscribe(self._count)

    def _count(self, activity: Activity) -> None:
        change = {"agent_start": 1, "agent_end": -1}.get(activity.kind, 0)
        if change:
            self._running += change
            # Every page gets each change: with many chats there would be hundreds a second.
            if not self._running:
                self._show_running()
            elif self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_STATUS_SECONDS, self._show_running)

    def _toggle_running(self) -> None:
        self._shows_running = not self._shows_running
        self._show_running()

    def _show_running(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._set_status is None:
            return
        count = self._running if self._shows_running else 0
        text = f"{count} {'answer' if count == 1 else 'answers'} being made"
        german = f"{count} {'Antwort entsteht' if count == 1 else 'Antworten entstehen'}"
        self._set_status([StatusSegment(text, dim=True, texts={"de": german})] if count else [])

    def commands(self) -> Sequence[SlashCommand]:
        """Return /help, /stop, /new, /compact and /status."""
        return (
            SlashCommand("help", "Show the commands", self._help, at_once=True),
            SlashCommand("stop", "Stop the running answer", self._stop),
            SlashCommand("new", "Start a new conversation, without the previous messages", self._new),
            SlashCommand(
                "compact", "Summarize the conversation for the model: /compact [what to keep]", self._compact
            ),
            SlashCommand("status", "Show what this session is doing", self._status, at_once=True),
        )

    async def _help(self, _rest: str, ctx: CommandContext) -> str:
        usable = [
            command for command in self._registry.get_commands() if ctx.role == "admin" or not command.admin
        ]
        return "\n".join(f"- `/{command.name}` {command.description}" for command in usable)

    async def _stop(self, _rest: str, ctx: CommandContext) -> str:
        # The running turn was cancelled when this message was accepted; only its trace is visible here.
        answer = next((m for m in reversed(ctx.messages) if m.role == "assistant"), None)
        cut = answer is not None and answer.metadata.stop_reason == "cancelled"
        failed = answer is not None and answer.error is not None
        return "Stopped." if cut and not failed else "Nothing is running."

    async def _new(self, _rest: str, ctx: CommandContext) -> str:
        self._sessions.get_loaded(ctx.session).cut_context()
        return "New conversation. The model no longer sees the messages above."

    async def _compact(self, rest: str, ctx: CommandContext) -> str:
        if ctx.compact is None:
            return "This channel has no conversation to summarize."
        return await ctx.compact(rest)

    async def _status(self, _rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        # This command acts beside a running answer, and neither of them waits.
        waiting = max(0, session.pending - (1 if session.turn is None else 2))
        running = "" if session.turn is None else "\n- an answer is being made"
        place = (ctx.channel, ctx.inbound.address.chat)
        agent = self._agents.choose(session.row.agent, *place)
        model = self._agents.model_of(session.row, place) or self._default_model()
        planning = "- mode `plan`: tools that change something are not used\n" if session.row.mode else ""
        return (
            f"- session `{session.id}`\n- agent `{agent}`\n{planning}- model `{model}`\n"
            f"- messages {session.row.messages}\n- waiting {waiting}{running}"
        )


def _notice(message: Message) -> str | None:
    """Render a notice of the gateway in italics; return None for one with an error."""
    failed = message.error is not None
    return None if failed or not message.text else f"*{message.text}*"
