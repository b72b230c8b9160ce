"""The registries: channels, agent sources, and plugins with their contributions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog

from gateway.contract.channel import Channel
from gateway.contract.errors import (
    CATCHABLE,
    AlreadyRegisteredError,
    PluginActivationError,
    PluginError,
    SettingsError,
    is_cancellation_requested,
)
from gateway.contract.messages import Message
from gateway.contract.plugin import (
    AgentLoop,
    Figure,
    MentionProvider,
    MessageRenderer,
    Plugin,
    PluginContext,
    ShortcutHandler,
    SlashCommand,
    StatusSegment,
    TurnContext,
)
from gateway.contract.services import Unregister
from gateway.contract.tool import Tool
from gateway.events.bus import EventBus
from gateway.events.types import PluginRegistered, PluginUnregistered
from gateway.extensions.contributions import Contributions
from gateway.extensions.deadlines import Limit
from gateway.extensions.figures import collect_figures
from gateway.extensions.hooks import Hooks, overrides
from gateway.extensions.routes import PluginRoute, check_routes
from gateway.extensions.tasks import PluginTasks
from gateway.settings import PluginSettings

log = structlog.get_logger("trunkline.registry")

_DEACTIVATE_SECONDS = 5
"""Time limit of ``Plugin.deactivate``."""


class Named(Protocol):
    """An object with an id."""

    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)
V = TypeVar("V")


class Registry(Generic[N]):
    """Entries by id, in order of registration."""

    kind = "entry"

    def __init__(self) -> None:
        self._entries: dict[str, N] = {}

    def register(self, entry: N) -> Unregister:
        """Add an entry. Raises AlreadyRegisteredError if the id is taken; the result removes it."""
        if entry.id in self._entries:
            raise AlreadyRegisteredError(f"{self.kind} {entry.id!r} is already registered")
        self._entries[entry.id] = entry

        def unregister() -> None:
            if self._entries.get(entry.id) is entry:
                del self._entries[entry.id]

        return unregister

    def get(self, entry_id: str) -> N | None:
        """Return the entry with this id, or None."""
        return self._entries.get(entry_id)

    def list(self) -> tuple[N, ...]:
        """Return all entries, oldest first."""
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
        """Return the folders, oldest first."""
        return tuple(self._folders)


class PluginRegistry:
    """The plugins and their contributions, read live.

    ``context`` creates the context of a plugin with the services of the host. ``settings`` returns the
    settings of a plugin by name, time limits included.
    """

    def __init__(
        self,
        context: Callable[[PluginRegistry, Plugin], PluginContext],
        settings: Callable[[str], PluginSettings] = lambda _name: PluginSettings(),
        events: EventBus | None = None,
    ) -> None:
        self.events = EventBus() if events is None else events
        self._context = context
        self._settings = settings
        self._plugins: dict[str, Plugin] = {}
        self._contexts: dict[str, PluginContext] = {}
        self._hooks = Hooks()
        self.routes: Mapping[str, tuple[PluginRoute, ...]] = {}
        """The HTTP routes by plugin. The mapping is replaced when they change."""
        self._tool_plugins: list[Plugin] = []
        self._built_in: set[str] = set()
        self._tasks: dict[str, PluginTasks] = {}
        self.task_group: asyncio.TaskGroup | None = None
        """The group of the plugins' tasks, while the gateway runs."""
        self.contributions = Contributions(self.events)

    async def register(self, plugin: Plugin, *, built_in: bool = False) -> None:
        """Activate a plugin and add it; a plugin that fails to activate is not registered.

        Raises PluginActivationError if a later start may succeed, and PluginError otherwise. ``built_in``:
        the plugin comes with Trunkline, so the declarations of its tools are trusted.
        """
        if not plugin.name:
            raise PluginError(f"plugin {type(plugin).__name__} has no name")
        if plugin.name in self._plugins:
            raise AlreadyRegisteredError(f"plugin {plugin.name!r} is already registered")
        self._refuse_duplicates(plugin)
        context = self._context(self, plugin)
        self._plugins[plugin.name], self._contexts[plugin.name] = plugin, context
        if built_in and not plugin.asks_by_default:
            self._built_in.add(plugin.name)
        self._compose()
        limit = Limit(plugin.name, "activate", self._settings(plugin.name).activate_timeout_ms / 1000)
        try:
            if plugin.settings_model is not None:
                context.options(plugin.settings_model)
            await limit.call(plugin.activate, context)
            routes = check_routes(plugin.name, plugin.routes())
        except CATCHABLE as error:
            await self._end_tasks(plugin.name)
            self._forget(plugin.name)
            if is_cancellation_requested(error):
                raise
            lasting = isinstance(error, SettingsError | PluginError)
            kind = PluginError if lasting else PluginActivationError
            raise kind(f"plugin {plugin.name!r} failed to activate: {error}") from error
        if routes:
            self.routes = {**self.routes, plugin.name: routes}
        commands = self._commands()
        for command in _offered(plugin, plugin.commands):
            if command.choices is not None and commands[command.name][1] == plugin.name:
                self.contributions.add_choices(plugin.name, command.name, command.choices)
        self.events.emit(PluginRegistered(plugin.name, plugin.version))

    async def unregister(self, name: str) -> None:
        """Deactivate a plugin and remove its contributions; ignore an unknown name."""
        plugin = self._plugins.get(name)
        if plugin is None:
            return
        # First, because the tasks may use what the plugin releases.
        await self._end_tasks(name)
        try:
            async with asyncio.timeout(_DEACTIVATE_SECONDS):
                await _awaited(plugin.deactivate())
        except Exception:
            log.exception("a plugin failed to deactivate", plugin=name)
        self._forget(name)
        self.events.emit(PluginUnregistered(name))

    async def shutdown(self) -> None:
        """Unregister all plugins, the latest first."""
        for name in reversed(tuple(self._plugins)):
            await self.unregister(name)

    def tasks(self, name: str) -> PluginTasks | None:
        """Return the tasks of a plugin that is being registered; None if the gateway does not run."""
        if self.task_group is None:
            return None
        tasks = self._tasks[name] = PluginTasks(name, self.task_group)
        return tasks

    async def _end_tasks(self, name: str) -> None:
        tasks = self._tasks.pop(name, None)
        if tasks is not None:
            await tasks.end()

    def get(self, name: str) -> Plugin | None:
        """Return the plugin with this name, or None."""
        return self._plugins.get(name)

    def list(self) -> tuple[Plugin, ...]:
        """Return all plugins, oldest first."""
        return tuple(self._plugins.values())

    def get_tools(self) -> tuple[Tool, ...]:
        """Return all tools, in plugin order; skip a plugin that fails to list its tools."""
        return tuple(tool for plugin in self._tool_plugins for tool in _offered(plugin, plugin.tools))

    def limit_of(self, tool: Tool) -> Limit:
        """Return the time limit of a tool: its own, or the one in the settings of its plugin."""
        plugins = self._plugins.values()
        names = (p.name for p in plugins for each in _offered(p, p.tools) if each.name == tool.name)
        owner = next(names, "")
        timeout_ms = tool.timeout_ms or self._settings(owner).tool_timeout_ms
        return Limit(owner, f"tool {tool.name}", timeout_ms / 1000)

    def owner_of(self, tool: Tool) -> Plugin | None:
        """Return the plugin that offers a tool of this name, or None."""
        return next(
            (p for p in self._tool_plugins if any(each.name == tool.name for each in _offered(p, p.tools))),
            None,
        )

    def asks_by_default(self, tool: Tool) -> bool:
        """Return whether only a rule that names a tool allows it without an approval."""
        owner = self.owner_of(tool)
        return owner is not None and owner.asks_by_default

    def is_built_in(self, tool: Tool) -> bool:
        """Return whether a plugin that comes with Trunkline offers exactly this tool.

        A tool of the same name that a hook substituted is not built in.
        """
        plugins = [plugin for name, plugin in self._plugins.items() if name in self._built_in]
        return any(tool is offered for plugin in plugins for offered in _offered(plugin, plugin.tools))

    async def get_filtered_tools(self, ctx: TurnContext) -> tuple[Tool, ...]:
        """Return the tools that the plugins allow in this turn."""
        return await self._hooks.filter_tools(self.get_tools(), ctx)

    def get_hooks(self) -> Hooks:
        """Return the composed hooks."""
        return self._hooks

    async def get_system_prompts(self) -> tuple[str, ...]:
        """Return the plugins' system prompts in order, without empty ones."""
        found: list[str] = []
        for plugin in self.list():
            prompt = plugin.system_prompt
            if prompt and (text := prompt if isinstance(prompt, str) else await self._prompt(plugin, prompt)):
                found.append(text)
        return tuple(found)

    async def apply_system_prompt_transforms(self, prompt: str, ctx: TurnContext) -> str:
        """Return the prompt after every plugin's ``transform_system_prompt``."""
        return await self._hooks.transform_system_prompt(prompt, ctx)

    def get_commands(self) -> Mapping[str, SlashCommand]:
        """Return the slash commands by name; the first plugin that offers a name wins."""
        return {name: command for name, (command, _) in self._commands().items()}

    def find_command(self, name: str) -> tuple[SlashCommand, Mapping[str, Any]] | None:
        """Return a slash command with the settings of its plugin, or None."""
        found = self._commands().get(name)
        return None if found is None else (found[0], self._contexts[found[1]].config)

    def get_agent_loop(self) -> AgentLoop | None:
        """Return the agent loop of the first plugin that has one."""
        return next((p.agent_loop for p in self._plugins.values() if p.agent_loop is not None), None)

    def get_renderer(self, custom_type: str) -> MessageRenderer | None:
        """Return the first registered renderer of a message type."""
        return next(iter(self.contributions.find("renderer", custom_type)), None)

    def get_shortcut(self, key: str) -> ShortcutHandler | None:
        """Return the handler of a key; a key with a handler is consumed."""
        return next(iter(self.contributions.find("shortcut", key)), None)

    def get_mention_providers(self, trigger: str = "@") -> tuple[MentionProvider, ...]:
        """Return the completers of a trigger."""
        return self.contributions.find("mention", trigger)

    def get_status_segments(self) -> tuple[StatusSegment, ...]:
        """Return the segments of the status line, in plugin order."""
        status = self.contributions.status
        return tuple(segment for name in self._plugins for segment in status.get(name, ()))

    def get_shortcuts(self) -> tuple[str, ...]:
        """Return the keys that have a handler."""
        return self.contributions.keys("shortcut")

    def get_mention_triggers(self) -> tuple[str, ...]:
        """Return the triggers that have a completer."""
        return self.contributions.keys("mention")

    def render(self, message: Message) -> str | None:
        """Render a message by its type's renderer; None without one, or if it fails."""
        renderer = None if message.custom_type is None else self.get_renderer(message.custom_type)
        if renderer is None:
            return None
        try:
            return renderer(message)
        except Exception:
            log.exception("a renderer failed", custom_type=message.custom_type)
            return None

    async def _prompt(self, plugin: Plugin, prompt: Callable[[PluginContext], Any]) -> str:
        limit = Limit(plugin.name, "system_prompt", self._hook_seconds(plugin))
        try:
            return await limit.call(prompt, self._contexts[plugin.name])
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            raise PluginError(f"plugin {plugin.name!r} failed in its system prompt: {error}") from error

    def _compose(self) -> None:
        # Tools are listed for every model call; most plugins have none.
        self._tool_plugins = [plugin for plugin in self.list() if overrides(plugin, "tools")]
        self._hooks = Hooks(self.list(), self._hook_seconds, lambda p: self._settings(p.name).on_failure)

    async def collect_figures(self) -> tuple[Mapping[str, Sequence[Figure]], Sequence[str]]:
        """Return the metrics of all plugins by full name, and the plugins that failed to give theirs."""
        plugins = [plugin for plugin in self.list() if overrides(plugin, "figures")]
        return await collect_figures([(plugin, self._hook_seconds(plugin)) for plugin in plugins])

    def limit_of_route(self, found: PluginRoute) -> Limit:
        """Return the time limit of one request: that of the plugin's tools."""
        seconds = self._settings(found.plugin).tool_timeout_ms / 1000
        return Limit(found.plugin, f"route {found.route.method} {found.route.path}", seconds)

    def _hook_seconds(self, plugin: Plugin) -> float:
        return self._settings(plugin.name).hook_timeout_ms / 1000

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
                detail = f"plugin {plugin.name!r}: tool {tool.name!r} is already registered"
                raise AlreadyRegisteredError(detail)
            taken.add(tool.name)

    def _forget(self, name: str) -> None:
        del self._plugins[name], self._contexts[name]
        self._built_in.discard(name)
        self.routes = {owner: routes for owner, routes in self.routes.items() if owner != name}
        self._compose()
        self.events.remove_owner(name)
        self.contributions.drop(name)


def _offered(plugin: Plugin, offer: Callable[[], Sequence[V]]) -> Sequence[V]:
    try:
        return offer()
    except Exception:
        log.exception("a plugin failed to list its contributions", plugin=plugin.name)
        return ()


async def _awaited(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer
