"""The built-in slash commands, contributed like any plugin's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.messages import ErrorPart
from gateway.plugin import CommandContext, Plugin, SlashCommand
from gateway.registry import PluginRegistry
from gateway.routing import Agents
from gateway.session import Sessions


class Commands(Plugin):
    """/help, /stop, /new and /status."""

    name = "commands"

    def __init__(
        self, registry: PluginRegistry, sessions: Sessions, agents: Agents, default_model: Callable[[], str]
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._agents = agents
        self._default_model = default_model

    def commands(self) -> Sequence[SlashCommand]:
        """The four."""
        return (
            SlashCommand("help", "Show the commands", self._help),
            SlashCommand("stop", "Stop the answer that is being made", self._stop),
            SlashCommand("new", "Start afresh: the model forgets what was said here", self._new),
            SlashCommand("status", "Show what this session is doing", self._status),
        )

    async def _help(self, _rest: str, ctx: CommandContext) -> str:
        commands = sorted(self._registry.get_commands().values(), key=lambda command: command.name)
        usable = [command for command in commands if ctx.role == "admin" or not command.admin]
        return "\n".join(f"- `/{command.name}` {command.description}" for command in usable)

    async def _stop(self, _rest: str, ctx: CommandContext) -> str:
        # The running turn was aborted when this message was accepted; here only its trace is left.
        answer = next((m for m in reversed(ctx.messages) if m.role == "assistant"), None)
        cut = answer is not None and answer.metadata.stop_reason == "cancelled"
        failed = answer is not None and any(isinstance(part, ErrorPart) for part in answer.parts)
        return "Stopped." if cut and not failed else "Nothing is running."

    async def _new(self, _rest: str, ctx: CommandContext) -> str:
        self._sessions.loaded(ctx.session).cut_context()
        return "A new conversation. I no longer see what was said above."

    async def _status(self, _rest: str, ctx: CommandContext) -> str:
        session = self._sessions.loaded(ctx.session)
        waiting = max(0, session.pending - 1)
        agent = self._agents.chosen(session.row.agent, ctx.channel)
        model = self._agents.model_of(session.row, ctx.channel) or self._default_model()
        several = f"- agent `{agent}`\n" if len(self._agents.all) > 1 else ""
        return (
            f"- session `{session.id}`\n{several}- model `{model}`\n"
            f"- messages {session.row.messages}\n- waiting {waiting}"
        )
