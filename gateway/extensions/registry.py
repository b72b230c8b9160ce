"""The registries: channels, agent sources, and plugins with their contributions."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import structlog

from gateway.contract.channel import Channel, ServesHttp
from gateway.contract.errors import (
    CATCHABLE,
    AlreadyRegisteredError,
    InvalidStateError,
    PluginActivationError,
    PluginError,
    SettingsError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.messages import Display, Message, TextPart
from gateway.contract.plugin import (
    Figure,
    MessageRenderer,
    Plugin,
    PluginContext,
    SlashCommand,
    StatusSegment,
    TurnContext,
)
from gateway.contract.services import Unregister
from gateway.contract.tool import Tool
from gateway.events.bus import EventBus
from gateway.events.types import PluginRegistered, PluginUnregistered
from gateway.extensions.admission.config_schema import schema_problem
from gateway.extensions.contributions import Contributions
from gateway.extensions.deadlines import Limit
from gateway.extensions.figures import collect_figures
from gateway.extensions.generation import ActivePlugin, Generation, Lease, offered
from gateway.extensions.hooks import Hooks, check_names, overrides
from gateway.extensions.routes import PluginRoute, check_prefixes, check_routes
from gateway.extensions.scope import Scope
from gateway.settings import PluginSettings, table_of

log = structlog.get_logger("trunkline.registry")

_COMMAND_NAME = re.compile(r"[^\s/]\S*")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DEACTIVATE_SECONDS = 5
"""Time limit of ``Plugin.deactivate``."""
_LONGEST_WAIT = 60.0
"""Seconds that turns which only wait for a person keep a replaced plugin."""
_LONGEST_USE = 600.0
"""Seconds that any turn keeps a replaced plugin."""


class Named(Protocol):
    """An object with an id."""

    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)
T = TypeVar("T")


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
    """The channels that the gateway runs. ``on_add`` and ``on_remove`` are called with each change."""

    kind = "channel"

    def __init__(self) -> None:
        super().__init__()
        self.on_add: Callable[[Channel], None] = lambda _channel: None
        self.on_remove: Callable[[Channel], None] = lambda _channel: None

    def register(self, entry: Channel) -> Unregister:
        """Add a channel; see ``Registry.register``. Raises SettingsError for a path of another channel."""
        taken = {route: other.id for other in self.list() for route in _routes(other)}
        for route in _routes(entry):
            if (owner := taken.get(route, entry.id)) != entry.id:
                raise SettingsError(same_path(entry.id, owner, route[1]))
        unregister = super().register(entry)
        self.on_add(entry)

        def remove() -> None:
            if self.get(entry.id) is entry:
                unregister()
                self.on_remove(entry)

        return remove


def same_path(channel_id: str, owner: str, path: str) -> str:
    """Return the complaint about a channel with a path that another one already has."""
    return (
        f"{table_of(channel_id)}: the path {path} is also that of [{table_of(owner)}]; set another one here"
    )


def _routes(channel: Channel) -> Iterator[tuple[str, str]]:
    """Yield method and path of each route that a channel adds to the server."""
    for route in channel.routes() if isinstance(channel, ServesHttp) else ():
        yield route.method, route.path


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
    """The plugins and their contributions. Each change replaces ``current``, which turns hold by a lease.

    ``context`` creates the context of a plugin with the services of the host; the scope owns what the plugin
    registers with them. ``settings`` returns the settings of a plugin by name, time limits included.
    """

    def __init__(
        self,
        context: Callable[[PluginRegistry, Plugin, Scope], PluginContext],
        settings: Callable[[str], PluginSettings] = lambda _name: PluginSettings(),
        events: EventBus | None = None,
    ) -> None:
        self.events = EventBus() if events is None else events
        self.current = Generation()
        self.routes: Mapping[str, tuple[PluginRoute, ...]] = {}
        """The HTTP routes by plugin. The mapping is replaced when they change."""
        self.task_group: asyncio.TaskGroup | None = None
        """The group of the plugins' tasks, while the gateway runs."""
        self.contributions = Contributions(self.events)
        self._context = context
        self._settings = settings
        self._active: dict[str, ActivePlugin] = {}
        self._leases: set[Lease] = set()
        self._ending: dict[asyncio.Task[None], asyncio.Event] = {}
        """The tasks that end replaced plugins, with what wakes them."""
        self._stopping = False

    async def register(self, plugin: Plugin, *, built_in: bool = False) -> None:
        """Activate a plugin and add it; a plugin that fails to activate is not registered.

        Raises PluginActivationError if a later start may succeed, and PluginError otherwise. ``built_in``:
        the plugin comes with Trunkline, so the declarations of its tools are trusted.
        """
        if not plugin.name:
            raise PluginError(f"plugin {type(plugin).__name__} has no name")
        if plugin.name in self._active:
            raise AlreadyRegisteredError(f"plugin {plugin.name!r} is already registered")
        new = self._prepare(plugin, built_in=built_in)
        self._active[new.name] = new
        self._publish()
        try:
            await self._activate(new, instead_of=new)
        except BaseException:
            self._active.pop(new.name, None)
            self._publish()
            raise
        self._publish()
        self._announce(new)

    async def replace(self, name: str, plugin: Plugin) -> None:
        """Put a plugin in the place of the one with its name; turns that run keep that one for some time.

        The new plugin is activated first. If that fails, or it registers what another plugin has, the old
        one stays. Raises the errors of ``register``.
        """
        old = self._active.get(name)
        if old is None:
            raise PluginError(f"plugin {name!r} is not registered and cannot be replaced")
        if plugin.name != name:
            raise PluginError(f"plugin {plugin.name!r} cannot replace {name!r}; their names must be equal")
        new = self._prepare(plugin, built_in=old.built_in, instead_of=old)
        await self._activate(new, instead_of=old)
        try:
            # No other code runs until both are exchanged, so that no event or request meets both or neither.
            self._exchange(old, new)
        except CATCHABLE as error:  # a plain function cannot have been cancelled
            await self._end(new)
            raise PluginError(f"plugin {name!r} cannot be replaced: {error}") from error
        self._announce(new)
        if self.task_group is None or self._stopping:
            await self._end(old)
        else:
            wake = asyncio.Event()
            # An empty context: the turn or hook that replaces the plugin ends before.
            ending = self._end_when_unused(old, wake)
            task = self.task_group.create_task(ending, name=f"end of {name}", context=Context())
            self._ending[task] = wake
            task.add_done_callback(self._ending.pop)

    async def unregister(self, name: str) -> None:
        """Remove a plugin with its contributions, and deactivate it; ignore an unknown name.

        Turns that run do without it from their next call on.
        """
        old = self._active.pop(name, None)
        if old is None:
            return
        old.scope.retire()
        self._publish()
        self._move_leases(old)
        await self._end(old)
        self.events.emit(PluginUnregistered(name))

    async def shutdown(self) -> None:
        """End the plugins that were replaced, then unregister all, the latest first."""
        self._stopping = True
        ending = [*self._ending]
        self._wake()
        if ending:
            await asyncio.wait(ending)
        for name in reversed(tuple(self._active)):
            await self.unregister(name)

    @contextmanager
    def lease(self) -> Generator[Lease]:
        """Hold the current generation for a turn."""
        lease = Lease(self.current, self._wake)
        self._leases.add(lease)
        try:
            yield lease
        finally:
            self._leases.discard(lease)
            self._wake()

    def _prepare(
        self, plugin: Plugin, *, built_in: bool, instead_of: ActivePlugin | None = None
    ) -> ActivePlugin:
        """Return a plugin with its context.

        Raises AlreadyRegisteredError for a tool that another one has, and PluginError for a misspelt hook.
        """
        check_names(plugin)
        self._check_offers(plugin, instead_of, built_in=built_in)
        scope = Scope(plugin.name, self.task_group, is_open=instead_of is None)
        context = self._context(self, plugin, scope)
        return ActivePlugin(plugin, context, scope, self._settings(plugin.name), built_in=built_in)

    async def _activate(self, new: ActivePlugin, *, instead_of: ActivePlugin) -> None:
        plugin, context, is_active = new.plugin, new.context, False
        try:
            if plugin.settings_model is not None:
                context.options(plugin.settings_model)
            await new.limit("activate", new.settings.activate_timeout_ms).call(plugin.activate, context)
            is_active = True
            new.routes = check_routes(plugin.name, plugin.routes(), plugin.api_prefixes)
            # Again: many plugins know their tools only now, and those in a process of their own always.
            self._check_offers(plugin, instead_of, built_in=new.built_in)
        except CATCHABLE as error:
            if is_active:
                await self._end(new)
            else:
                new.scope.retire()
                await new.scope.end_tasks()
                new.scope.release()
            if is_cancellation_requested(error):
                raise
            lasting = isinstance(error, SettingsError | PluginError)
            reason = error if isinstance(error, TrunklineError) else f"{type(error).__name__}: {error}"
            kind = PluginError if lasting else PluginActivationError
            raise kind(f"plugin {plugin.name!r} failed to activate: {reason}") from error

    def _exchange(self, old: ActivePlugin, new: ActivePlugin) -> None:
        if self._active.get(old.name) is not old:
            raise InvalidStateError("it was changed in the meantime")
        place = self.contributions.place_of(old.name)
        old.scope.close()
        try:
            new.scope.open()
        except CATCHABLE:
            new.scope.close()
            old.scope.open()
            raise
        finally:
            self.contributions.move(old.name, place)
        old.scope.retire()
        self._active[old.name] = new
        self._publish()

    def refresh(self) -> None:
        """Let the hooks count that a registered plugin has gained or lost, from the next turn on."""
        self._publish()

    def _publish(self) -> None:
        self.current = Generation(tuple(self._active.values()))
        routes = {name: one.routes for name, one in self._active.items() if one.routes}
        if routes != self.routes:
            self.routes = routes

    def _announce(self, new: ActivePlugin) -> None:
        """Register the choices of a plugin's commands, and emit that it is there."""
        commands = self.current.commands()
        for command in new.commands():
            if command.choices is not None and commands[command.name][1] is new:
                new.scope.add(self.contributions.add_choices, new.name, command.name, command.choices)
        for name, plugin, used in self.current.unused_commands():
            # Also of plugins after it in order, whose command a replacement may have taken.
            if new.name in (plugin, used):
                log.warning(
                    "two plugins have one command; the first is used", command=name, plugin=plugin, used=used
                )
        self.events.emit(PluginRegistered(new.name, new.plugin.version))

    async def _end_when_unused(self, old: ActivePlugin, wake: asyncio.Event) -> None:
        """End a replaced plugin after the last turn that uses it, or when it has had its time."""
        old.scope.calls.on_end = wake.set
        begun = asyncio.get_running_loop().time()
        for seconds in (_LONGEST_WAIT, _LONGEST_USE):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(begun + seconds):
                    while self._uses(old) and not self._stopping:
                        if seconds == _LONGEST_USE:
                            self._move_leases(old, only_waiting=True)
                            if not self._uses(old):
                                break
                        wake.clear()
                        await wake.wait()
                    break
        self._move_leases(old)
        await self._end(old)

    def _uses(self, old: ActivePlugin) -> bool:
        """Return whether a turn holds a plugin, or one of its calls runs."""
        return bool(old.scope.calls.running) or any(old in each.generation.active for each in self._leases)

    def _move_leases(self, old: ActivePlugin, *, only_waiting: bool = False) -> None:
        """Let turns use the current generation from their next call on."""
        for lease in self._leases:
            if old in lease.generation.active and (lease.only_waits or not only_waiting):
                lease.generation = self.current

    def _wake(self) -> None:
        for event in self._ending.values():
            event.set()

    async def _end(self, old: ActivePlugin) -> None:
        """Deactivate a plugin that is not registered any more, and release all that it has."""
        old.scope.retire()
        # Before the plugin, because the tasks may use what it releases.
        await old.scope.end_tasks()
        try:
            async with asyncio.timeout(_DEACTIVATE_SECONDS):
                await _awaited(old.plugin.deactivate())
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a plugin failed to deactivate", plugin=old.name)
        old.scope.release()

    def get(self, name: str) -> Plugin | None:
        """Return the plugin with this name, or None."""
        found = self._active.get(name)
        return None if found is None else found.plugin

    def list(self) -> tuple[Plugin, ...]:
        """Return all plugins in their order."""
        return tuple(one.plugin for one in self._active.values())

    def get_tools(self) -> tuple[Tool, ...]:
        """Return all tools, in plugin order; skip a plugin that fails to list its tools."""
        return self.current.get_tools()

    async def get_filtered_tools(self, ctx: TurnContext) -> tuple[Tool, ...]:
        """Return the tools that the plugins allow in this turn."""
        return await self.current.get_filtered_tools(ctx)

    def get_commands(self) -> Sequence[SlashCommand]:
        """Return the slash commands by name, of each name the one that is used."""
        return [command for _, (command, _) in sorted(self.current.commands().items())]

    def get_hooks(self) -> Hooks:
        """Return the composed hooks."""
        return self.current.hooks

    async def get_system_prompts(self) -> tuple[str, ...]:
        """Return the plugins' system prompts in order, without empty ones."""
        return await self.current.get_system_prompts()

    async def apply_system_prompt_transforms(self, prompt: str, ctx: TurnContext) -> str:
        """Return the prompt after every plugin's ``transform_system_prompt``."""
        return await self.current.apply_system_prompt_transforms(prompt, ctx)

    def get_renderer(self, custom_type: str) -> MessageRenderer | None:
        """Return the first registered renderer of a message type."""
        return next(iter(self.contributions.find("renderer", custom_type)), None)

    def get_status_segments(self) -> tuple[StatusSegment, ...]:
        """Return the segments of the status line, in plugin order."""
        status = self.contributions.status
        return tuple(segment for name in self._active for segment in status.get(name, ()))

    def get_panels(self) -> tuple[tuple[str, str], ...]:
        """Return the panels on the chat page, by plugin and in plugin order: Markdown."""
        panels = self.contributions.panels
        return tuple((name, panels[name]) for name in self._active if panels.get(name))

    def get_shortcuts(self) -> tuple[str, ...]:
        """Return the keys that have a handler."""
        return self.contributions.keys("shortcut")

    def get_mention_triggers(self) -> tuple[str, ...]:
        """Return the triggers that have a completer."""
        return self.contributions.keys("mention")

    def render(self, message: Message) -> str | None:
        """Return the Markdown that replaces a message for readers: its label and its renderer's text.

        None if it has neither, or if the renderer fails. A label needs a renderer or a message of text alone.
        """
        renderer = None if message.custom_type is None else self.get_renderer(message.custom_type)
        label = "" if message.display is None else _label(message.display)
        if renderer is None:
            is_text = all(isinstance(part, TextPart) for part in message.parts)
            return label + message.text if label and is_text else None
        try:
            text = renderer(message)
        except Exception:
            log.exception("a renderer failed", custom_type=message.custom_type)
            return None
        return None if text is None else label + text

    async def collect_figures(self) -> tuple[Mapping[str, Sequence[Figure]], Sequence[str]]:
        """Return the metrics of all plugins by full name, and the plugins that failed to give theirs."""
        active = [one for one in self._active.values() if overrides(one.plugin, "figures")]
        return await collect_figures([(one.plugin, one.hook_limit("figures")) for one in active])

    def limit_of_route(self, plugin: str, route: str) -> Limit:
        """Return the time limit of one request: that of the plugin's tools."""
        owner = self._active[plugin]
        return owner.limit(f"route {route}", owner.settings.tool_timeout_ms)

    def on_end(self, plugin: str, end: Callable[[], None]) -> Unregister:
        """Call ``end`` when a plugin is removed or replaced. The result takes that back."""
        return self._active[plugin].scope.add(lambda: end)

    def _check_offers(self, plugin: Plugin, instead_of: ActivePlugin | None, *, built_in: bool) -> None:
        """Raise PluginError for a command that cannot be typed or a tool that providers would refuse."""
        others = [one for one in self._active.values() if one is not instead_of]
        check_prefixes(plugin, {prefix: one.name for one in others for prefix in one.plugin.api_prefixes})
        for command in _listed(plugin, "commands", SlashCommand):
            if not _COMMAND_NAME.fullmatch(command.name):
                raise PluginError(
                    f"plugin {plugin.name!r}: the command {command.name!r} cannot be typed; its name is one "
                    "word, without the slash"
                )
        taken = {tool.name: one.name for one in others for tool in one.tools()}
        for tool in _listed(plugin, "tools", Tool):
            if tool.name in taken:
                detail = f"tool {tool.name!r} is already registered by {taken[tool.name]!r}"
                raise AlreadyRegisteredError(f"plugin {plugin.name!r}: {detail}")
            if not _TOOL_NAME.fullmatch(tool.name):
                raise PluginError(
                    f"plugin {plugin.name!r}: the name of the tool {tool.name!r} must have 1 to 64 letters, "
                    "digits, _ and -"
                )
            # Those of built-in tools are made by the gateway, and the check takes 30 ms to import.
            if not built_in and (problem := schema_problem(tool.definition.parameters)):
                raise PluginError(f"plugin {plugin.name!r}: the schema of the tool {tool.name!r} {problem}")
            taken[tool.name] = plugin.name


def _listed(plugin: Plugin, method: str, kind: type[T]) -> Sequence[T]:
    """Return what a method of a plugin lists. Raises PluginError if that is no list of this kind."""
    found: object = offered(plugin, getattr(plugin, method))
    listed = cast("Sequence[object]", found) if isinstance(found, list | tuple) else (found,)
    kept = [each for each in listed if isinstance(each, kind)]
    if len(kept) < len(listed):
        raise PluginError(f"plugin {plugin.name!r}: {method}() must return a list of {kind.__name__}")
    return kept


def _label(display: Display) -> str:
    badge = display.badge and f"`{display.badge.replace('`', '')}`"
    return "".join(f"{text} " for text in (badge, display.prefix) if text)


async def _awaited(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer
