"""Coding programs as backends: Claude Code, Codex, Gemini CLI and OpenCode, each also a model provider.

In: messages of a chat, and the permissions that users give. Out: deltas, and changes in a workspace. Other
plugins use ``CliBackends.dispatcher``. ``README.md`` describes setup and design.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from gateway import (
    CommandContext,
    Plugin,
    PluginContext,
    Provider,
    ProviderConfig,
    SettingsError,
    SlashCommand,
)
from gateway.events import FileDeleted, FileModified
from gateway.provider_http import ProviderService
from plugins.cli_backends.adapters import claude_code, codex, gemini, opencode
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.contract import DispatchOptions, GitChanges
from plugins.cli_backends.dispatcher import Dispatcher
from plugins.cli_backends.login import VARIABLES
from plugins.cli_backends.provider import ACTIVE, CliProvider, LoginProvider
from plugins.cli_backends.settings import CliSettings, SettingsSource
from plugins.cli_backends.state import Memory, SessionFile
from plugins.programs.environment import SHARED_VARIABLES

log = structlog.get_logger("trunkline.cli_backends")

CLIS: Sequence[Cli] = (claude_code.CLI, codex.CLI, gemini.CLI, opencode.CLI)


MOST_EVENTS = 1_000
"""Files of one dispatch that are events."""


class CliBackends(Plugin):
    """The plugin: it registers the programs as providers and adds commands for them."""

    name = "cli_backends"
    settings_model = CliSettings
    environ = tuple(sorted(SHARED_VARIABLES.union(VARIABLES, *(cli.program.variables for cli in CLIS))))

    def __init__(self) -> None:
        self._dispatcher: Dispatcher | None = None
        self._memory: Memory | None = None

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher, for other plugins. Raises SettingsError before the plugin is active."""
        if self._dispatcher is None:
            raise SettingsError("cli_backends is not active")
        return self._dispatcher

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings and the stored state, and add the providers."""
        folder = await asyncio.to_thread(Path(ctx.cwd).absolute)
        source = SettingsSource(ctx.options(CliSettings), ctx.environ.get("HOME", ""))
        sessions = SessionFile(folder / "cli-sessions.json")
        backends = [
            SpawnedBackend(cli, ctx.environ, sessions, partial(_stored_key, ctx.providers, cli.stand_in))
            for cli in CLIS
        ]
        self._memory = Memory(folder / "cli-memory.json")
        self._dispatcher = Dispatcher(
            backends,
            source,
            self._memory,
            folder / "workspace",
            ctx.environ,
            report_changes=partial(_report_changes, ctx),
        )
        if ctx.providers is not None:
            ctx.providers.add_factory(ACTIVE, self._provider, optional=True, needs_key=False)
            for backend in backends:
                ctx.providers.add_factory(
                    backend.name,
                    self._provider,
                    optional=True,
                    stand_in=backend.cli.stand_in,
                    needs_key=False,
                    key_of=backend.cli.stand_in,
                )

    async def find_problem(self) -> str:
        """Return the names in the settings that no backend has, if any."""
        settings, known = await self.dispatcher.refresh_settings(), self.dispatcher.backends
        named = dict.fromkeys((settings.active_plugin, *settings.fallback_plugins, *settings.plugins))
        if unknown := [name for name in named if name not in known]:
            return f"no backend is named {', '.join(unknown)}; choose from {', '.join(known)}"
        return ""

    async def deactivate(self) -> None:
        """End all running dispatches."""
        if self._dispatcher is not None:
            for backend in self._dispatcher.backends.values():
                await backend.shutdown()

    def commands(self) -> Sequence[SlashCommand]:
        """Return the commands for facts and for the state of the backends."""
        return (
            SlashCommand("backends", "Show the coding backends", self._show),
            SlashCommand("remember", "Add a fact for the coding backends in this chat", self._remember),
            SlashCommand("forget", "Remove all facts of this chat", self._forget),
        )

    def _provider(self, config: ProviderConfig) -> Provider:
        cli = next((cli for cli in CLIS if cli.name == config.id), None)
        if cli is None:
            return CliProvider(config.id, "The active coding backend", self._current)
        made = CliProvider if cli.login is None else LoginProvider
        return made(config.id, cli.program.title, self._current)

    def _current(self) -> Dispatcher:
        return self.dispatcher

    async def _show(self, rest: str, ctx: CommandContext) -> str:
        settings = await self.dispatcher.refresh_settings()
        lines: list[str] = []
        for name, backend in self.dispatcher.backends.items():
            available = await backend.is_available()
            state = (
                f"available {backend.version}"
                if available
                else f"not available ({backend.unavailable_reason})"
            )
            active = " (active)" if name == settings.active_plugin else ""
            running = backend.get_running_task_count()
            lines.append(f"- {name}{active}: {state}, {running} running".replace(" ,", ","))
        return "\n".join(lines)

    async def _remember(self, rest: str, ctx: CommandContext) -> str:
        if self._memory is None or not rest.strip():
            return "Write the fact after the command: /remember <text>"
        await self._memory.add(ctx.session, rest)
        return "Remembered."

    async def _forget(self, rest: str, ctx: CommandContext) -> str:
        count = 0 if self._memory is None else await self._memory.clear(ctx.session)
        return f"Facts removed: {count}."


def _report_changes(ctx: PluginContext, options: DispatchOptions, backend: str, changes: GitChanges) -> None:
    """Emit an event for each file that a program changed, if git shows the change."""
    events = ctx.events
    if events is None:
        return
    if len(changes.files) > MOST_EVENTS:
        log.warning("too many changed files for events", backend=backend, files=len(changes.files))
    gone = frozenset(changes.deleted)
    for name in changes.files[:MOST_EVENTS]:
        kind = FileDeleted if name in gone else FileModified
        if events.wants(kind, options.conversation_id):
            path = str(Path(changes.root, name))
            events.emit(kind(options.conversation_id, path, options.answer_id, by=backend))


def _stored_key(providers: ProviderService | None, provider_id: str) -> str:
    """Return the key that a login stored for a provider, or "".

    A key from the settings or the environment is meant for that provider alone: a program with its own
    login must not spend from it.
    """
    if providers is None or not provider_id:
        return ""
    try:
        config = providers.configured(provider_id)
    except SettingsError as error:
        log.warning("stored key unreadable", provider=provider_id, reason=str(error))
        return ""
    return config.api_key or "" if config.signed_in else ""


def create() -> Plugin:
    """Return the plugin."""
    return CliBackends()
