"""The registries: channels, agent sources, and the plugins with all they contribute."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog

from gateway.channel import Channel
from gateway.contributions import Contributions
from gateway.errors import (
    FAILURES,
    AlreadyRegisteredError,
    PluginError,
    asked_for,
)
from gateway.hooks import Hooks
from gateway.messages import Message
from gateway.plugin import (
    AgentLoop,
    MentionProvider,
    MessageRenderer,
    Plugin,
    PluginContext,
    ShortcutHandler,
    SlashCommand,
    StatusSegment,
    TurnContext,
    Unregister,
)
from gateway.tool import Tool

log = structlog.get_logger("trunkline.registry")

_FAREWELL_SECONDS = 5
"""How long a plugin may take to deactivate."""


class Named(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)
V = TypeVar("V")


class Registry(Generic[N]):
    """Things by id, in the order they were registered."""

    kind = "entry"

    def __init__(self) -> None:
        self._entries: dict[str, N] = {}

    def register(self, entry: N) -> Unregister:
        """Add one. Raises AlreadyRegisteredError if the id is taken; the returned function removes it."""
        if entry.id in self._entries:
            raise AlreadyRegisteredError(f"{self.kind} {entry.id!r} is already registered")
        self._entries[entry.id] = entry

        def unregister() -> None:
            if self._entries.get(entry.id) is entry:
                del self._entries[entry.id]

        return unregister

    def get(self, entry_id: str) -> N | None:
        """The one with this id, or None."""
        return self._entries.get(entry_id)

    def list(self) -> tuple[N, ...]:
        """All, oldest first."""
        return tuple(self._entries.values())


class ChannelRegistry(Registry[Channel]):
    """The channels that the gateway runs."""

    kind = "channel"


class AgentSources:
    """Folders that hold agent definitions."""

    def __init__(self) -> None:
        self._folders: list[Path] = []

    def register_source(self, folder: Path) -> Unregister:
        """Add a folder (absolute). Raises PluginError if it is relative."""
        if not folder.is_absolute():
            raise PluginError(f"agent source {folder} must be an absolute path")
        self._folders.append(folder)

        def remove() -> None:
            if folder in self._folders:
                self._folders.remove(folder)

        return remove

    def list(self) -> tuple[Path, ...]:
        """The folders, oldest first."""
        return tuple(self._folders)


class RegistryView(Protocol):
    """What a plugin may read of the plugin registry."""

    def get_tools(self) -> tuple[Tool, ...]: ...

    async def get_filtered_tools(self, ctx: TurnContext) -> tuple[Tool, ...]: ...

    def get_hooks(self) -> Hooks: ...

    async def get_system_prompts(self) -> tuple[str, ...]: ...

    async def apply_system_prompt_transforms(self, prompt: str, ctx: TurnContext) -> str: ...


class PluginRegistry:
    """The plugins, and what they contribute, read live.

    ``context`` makes the context for a plugin; the host fills in what it has.
    """

    def __init__(self, context: Callable[[PluginRegistry, Plugin], PluginContext]) -> None:
        self._context = context
        self._plugins: dict[str, Plugin] = {}
        self._contexts: dict[str, PluginContext] = {}
        self._hooks = Hooks()
        self.contributions = Contributions()

    async def register(self, plugin: Plugin) -> None:
        """Activate a plugin and add it. If it fails to activate it is not registered (PluginError)."""
        if not plugin.name:
            raise PluginError(f"plugin {type(plugin).__name__} has no name")
        if plugin.name in self._plugins:
            raise AlreadyRegisteredError(f"plugin {plugin.name!r} is already registered")
        self._refuse_duplicates(plugin)
        context = self._context(self, plugin)
        self._plugins[plugin.name], self._contexts[plugin.name] = plugin, context
        self._hooks = Hooks(self.list())
        try:
            await _awaited(plugin.activate(context))
        except FAILURES as error:
            self._forget(plugin.name)
            if asked_for(error):
                raise
            raise PluginError(f"plugin {plugin.name!r} failed to activate: {error}") from error

    async def unregister(self, name: str) -> None:
        """Deactivate a plugin and remove all it contributed; an unknown name does nothing."""
        plugin = self._plugins.get(name)
        if plugin is None:
            return
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await _awaited(plugin.deactivate())
        except Exception:
            log.exception("a plugin failed to deactivate", plugin=name)
        self._forget(name)

    async def shutdown(self) -> None:
        """Unregister all, last first."""
        for name in reversed(tuple(self._plugins)):
            await self.unregister(name)

    def get(self, name: str) -> Plugin | None:
        """The plugin with this name, or None."""
        return self._plugins.get(name)

    def list(self) -> tuple[Plugin, ...]:
        """All plugins, oldest first."""
        return tuple(self._plugins.values())

    def get_tools(self) -> tuple[Tool, ...]:
        """All tools, in plugin order; a plugin that cannot tell its tools is passed over."""
        return tuple(tool for plugin in self._plugins.values() for tool in _offered(plugin, plugin.tools))

    async def get_filtered_tools(self, ctx: TurnContext) -> tuple[Tool, ...]:
        """The tools the plugins let through for this turn."""
        return await self._hooks.filter_tools(self.get_tools(), ctx)

    def get_hooks(self) -> Hooks:
        """The composed hooks."""
        return self._hooks

    async def get_system_prompts(self) -> tuple[str, ...]:
        """The plugins' system prompts, in order; empty ones are left out."""
        prompts = [await self._prompt(plugin) for plugin in self.list()]
        return tuple(prompt for prompt in prompts if prompt)

    async def apply_system_prompt_transforms(self, prompt: str, ctx: TurnContext) -> str:
        """The prompt after every plugin's ``transform_system_prompt``."""
        return await self._hooks.transform_system_prompt(prompt, ctx)

    def get_commands(self) -> Mapping[str, SlashCommand]:
        """Slash commands by name; the first plugin to offer a name has it."""
        return {name: command for name, (command, _) in self._commands().items()}

    def find_command(self, name: str) -> tuple[SlashCommand, Mapping[str, Any]] | None:
        """A slash command, with the settings of the plugin it belongs to."""
        found = self._commands().get(name)
        return None if found is None else (found[0], self._contexts[found[1]].config)

    def get_agent_loop(self) -> AgentLoop | None:
        """The loop of the first plugin that has one."""
        return next((p.agent_loop for p in self._plugins.values() if p.agent_loop is not None), None)

    def get_renderer(self, custom_type: str) -> MessageRenderer | None:
        """The renderer that was registered first for a message type."""
        return next(iter(self.contributions.find("renderer", custom_type)), None)

    def get_shortcut(self, key: str) -> ShortcutHandler | None:
        """The handler of a key, which is consumed if there is one."""
        return next(iter(self.contributions.find("shortcut", key)), None)

    def get_mention_providers(self, trigger: str = "@") -> tuple[MentionProvider, ...]:
        """The completers of a trigger."""
        return self.contributions.find("mention", trigger)

    def get_status_segments(self) -> tuple[StatusSegment, ...]:
        """The status line, in plugin order."""
        status = self.contributions.status
        return tuple(segment for name in self._plugins for segment in status.get(name, ()))

    def render(self, message: Message) -> str | None:
        """What the renderer of the message's type makes of it; None without one, or when it fails."""
        renderer = None if message.custom_type is None else self.get_renderer(message.custom_type)
        if renderer is None:
            return None
        try:
            return renderer(message)
        except Exception:
            log.exception("a renderer failed", custom_type=message.custom_type)
            return None

    async def _prompt(self, plugin: Plugin) -> str:
        prompt = plugin.system_prompt
        if isinstance(prompt, str):
            return prompt
        try:
            answer = prompt(self._contexts[plugin.name])
            return await answer if inspect.isawaitable(answer) else answer
        except FAILURES as error:
            if asked_for(error):
                raise
            raise PluginError(f"plugin {plugin.name!r} failed in its system prompt: {error}") from error

    def _commands(self) -> dict[str, tuple[SlashCommand, str]]:
        commands: dict[str, tuple[SlashCommand, str]] = {}
        for plugin in self._plugins.values():
            for command in _offered(plugin, plugin.commands):
                commands.setdefault(command.name, (command, plugin.name))
        return commands

    def _refuse_duplicates(self, plugin: Plugin) -> None:
        taken = {tool.name for tool in self.get_tools()}
        for tool in _offered(plugin, plugin.tools):
            if tool.name in taken:
                told = f"plugin {plugin.name!r}: tool {tool.name!r} is already registered"
                raise AlreadyRegisteredError(told)
            taken.add(tool.name)

    def _forget(self, name: str) -> None:
        del self._plugins[name], self._contexts[name]
        self._hooks = Hooks(self.list())
        self.contributions.drop(name)


def _offered(plugin: Plugin, offer: Callable[[], Sequence[V]]) -> Sequence[V]:
    try:
        return offer()
    except Exception:
        log.exception("a plugin could not tell what it offers", plugin=plugin.name)
        return ()


async def _awaited(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer
