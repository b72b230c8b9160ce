"""The built-in slash commands, contributed like any plugin's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.errors import ProviderError, TrunklineError
from gateway.messages import ErrorPart
from gateway.plugin import CommandContext, Plugin, SlashCommand
from gateway.registry import PluginRegistry
from gateway.routing import Models
from gateway.session import Session, Sessions


class Commands(Plugin):
    """/help, /stop, /new, /model, /status and /usage."""

    name = "commands"

    def __init__(
        self, registry: PluginRegistry, sessions: Sessions, models: Models, default_model: Callable[[], str]
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._models = models
        self._default_model = default_model

    def commands(self) -> Sequence[SlashCommand]:
        """The six."""
        return (
            SlashCommand("help", "Show the commands", self._help),
            SlashCommand("stop", "Stop the answer that is being made", self._stop),
            SlashCommand("new", "Start afresh: the model forgets what was said here", self._new),
            SlashCommand("model", "Show the model, or use another: /model provider/name", self._model),
            SlashCommand("status", "Show what this session is doing", self._status),
            SlashCommand("usage", "Show tokens and cost of this session", self._usage),
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
        self._session(ctx).cut_context()
        return "A new conversation. I no longer see what was said above."

    async def _model(self, rest: str, ctx: CommandContext) -> str:
        session = self._session(ctx)
        if not rest:
            return f"The model is `{session.row.model or self._default_model()}`."
        try:
            await self._models.resolve(rest)
        except ProviderError as error:
            return f"The model stays as it is: {error}"
        session.row.model = rest
        return f"From now on this session uses `{rest}`."

    async def _status(self, _rest: str, ctx: CommandContext) -> str:
        session = self._session(ctx)
        waiting = max(0, session.pending - 1)
        return (
            f"- session `{session.id}`\n- model `{session.row.model or self._default_model()}`\n"
            f"- messages {session.row.messages}\n- waiting {waiting}"
        )

    async def _usage(self, _rest: str, ctx: CommandContext) -> str:
        totals = self._session(ctx).totals
        return (
            f"- input {totals.input_tokens:,} tokens\n- output {totals.output_tokens:,} tokens\n"
            f"- cost ${totals.cost:.4f}"
        )

    def _session(self, ctx: CommandContext) -> Session:
        session = self._sessions.get(ctx.session)
        if session is None:
            raise TrunklineError(f"session {ctx.session!r} is not loaded")
        return session
