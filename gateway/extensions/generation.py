"""Generations: the plugins at one time. A turn keeps the one that it started with if a plugin is replaced.

The registry publishes a new generation with each change. A turn holds its own by a lease; so the registry
knows when a replaced plugin is not in use any more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from gateway.contract.errors import CATCHABLE, PluginError, is_cancellation_requested
from gateway.contract.plugin import AgentLoop, Plugin, PluginContext, SlashCommand, TurnContext
from gateway.contract.tool import Tool
from gateway.extensions.deadlines import Limit
from gateway.extensions.hooks import Hooks, overrides
from gateway.extensions.routes import PluginRoute
from gateway.extensions.scope import Scope
from gateway.settings import PluginSettings

log = structlog.get_logger("trunkline.registry")

V = TypeVar("V")


class ActivePlugin:
    """A plugin with its context, its scope and its settings at its registration."""

    def __init__(
        self,
        plugin: Plugin,
        context: PluginContext,
        scope: Scope,
        settings: PluginSettings,
        *,
        built_in: bool,
    ) -> None:
        self.plugin = plugin
        self.name = plugin.name
        self.context = context
        self.scope = scope
        self.settings = settings
        self.built_in = built_in and not plugin.asks_by_default
        self.routes: tuple[PluginRoute, ...] = ()

    def limit(self, function: str, timeout_ms: float) -> Limit:
        """Return a time limit for one of its functions."""
        return Limit(self.name, function, timeout_ms / 1000, self.scope.calls)

    def hook_limit(self, hook: str) -> Limit:
        """Return the time limit of a hook."""
        return self.limit(hook, self.settings.hook_timeout_ms)

    def tools(self) -> Sequence[Tool]:
        """Return its tools now; none if it fails to list them."""
        return offered(self.plugin, self.plugin.tools)

    def commands(self) -> Sequence[SlashCommand]:
        """Return its commands now; none if it fails to list them."""
        return offered(self.plugin, self.plugin.commands)


class Generation:
    """An immutable, ordered set of active plugins with their hooks. Tools are listed on each call."""

    def __init__(self, active: Sequence[ActivePlugin] = ()) -> None:
        self.active = tuple(active)
        self.hooks = Hooks(
            [(one.plugin, one.hook_limit) for one in active],
            {one.name: one.settings.on_failure or one.plugin.on_failure for one in active},
        )
        # Tools are listed for every model call; most plugins have none.
        self._with_tools = tuple(one for one in active if overrides(one.plugin, "tools"))

    def get_tools(self) -> tuple[Tool, ...]:
        """Return all tools, in plugin order."""
        return tuple(tool for one in self._with_tools for tool in one.tools())

    async def get_filtered_tools(self, ctx: TurnContext) -> tuple[Tool, ...]:
        """Return the tools that the plugins allow in this turn."""
        return await self.hooks.filter_tools(self.get_tools(), ctx)

    def limit_of(self, tool: Tool) -> Limit:
        """Return the time limit of a tool: its own, or the one in the settings of its plugin."""
        name = f"tool {tool.name}"
        for one in self._with_tools:
            if any(each.name == tool.name for each in one.tools()):
                return one.limit(name, tool.timeout_ms or one.settings.tool_timeout_ms)
        return Limit("", name, (tool.timeout_ms or PluginSettings().tool_timeout_ms) / 1000)

    def owner_of(self, tool: Tool) -> Plugin | None:
        """Return the plugin that offers a tool of this name, or None."""
        owners = (one for one in self._with_tools if any(each.name == tool.name for each in one.tools()))
        return next((one.plugin for one in owners), None)

    def asks_by_default(self, tool: Tool) -> bool:
        """Return whether only a rule that names a tool allows it without an approval."""
        owner = self.owner_of(tool)
        return owner is not None and owner.asks_by_default

    def is_built_in(self, tool: Tool) -> bool:
        """Return whether a plugin that comes with Trunkline offers exactly this tool.

        A tool of the same name that a hook substituted is not built in.
        """
        return any(tool is offered for one in self._with_tools if one.built_in for offered in one.tools())

    async def get_system_prompts(self) -> tuple[str, ...]:
        """Return the plugins' system prompts in order, without empty ones."""
        found: list[str] = []
        for one in self.active:
            prompt = one.plugin.system_prompt
            if prompt and (text := prompt if isinstance(prompt, str) else await _call_prompt(one, prompt)):
                found.append(text)
        return tuple(found)

    async def apply_system_prompt_transforms(self, prompt: str, ctx: TurnContext) -> str:
        """Return the prompt after every plugin's ``transform_system_prompt``."""
        return await self.hooks.transform_system_prompt(prompt, ctx)

    def commands(self) -> Mapping[str, tuple[SlashCommand, ActivePlugin]]:
        """Return the slash commands by name; the first plugin that offers a name wins."""
        commands: dict[str, tuple[SlashCommand, ActivePlugin]] = {}
        for one in self.active:
            for command in one.commands():
                commands.setdefault(command.name, (command, one))
        return commands

    def unused_commands(self) -> Sequence[tuple[str, str, str]]:
        """Return the commands that are never used: name, plugin, and the plugin whose command is used."""
        used = self.commands()
        return [
            (command.name, one.name, used[command.name][1].name)
            for one in self.active
            for command in one.commands()
            if used[command.name][1] is not one
        ]

    def find_command(self, name: str) -> tuple[SlashCommand, Mapping[str, Any]] | None:
        """Return a slash command with the settings of its plugin, or None."""
        found = self.commands().get(name)
        return None if found is None else (found[0], found[1].context.config)

    def agent_loop(self) -> AgentLoop | None:
        """Return the agent loop of the first plugin that has one."""
        loops = (one.plugin.agent_loop for one in self.active)
        return next((loop for loop in loops if loop is not None), None)


class Lease:
    """The generation of one turn and its nested runs.

    The registry exchanges ``generation`` if the turn holds a replaced plugin for too long; so ask for it at
    each call. ``branches`` is the number of its runs at the same time.
    """

    def __init__(self, generation: Generation, changed: Callable[[], None]) -> None:
        self.generation = generation
        self.branches = 1
        self._waits = 0
        self._pins = 0
        self._changed = changed

    @property
    def only_waits(self) -> bool:
        """Return whether all that the turn does is to wait for a person."""
        return self._waits >= self.branches and not self._pins

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Mark that a run of the turn waits for a person."""
        self._waits += 1
        self._changed()
        try:
            yield
        finally:
            self._waits -= 1

    @contextmanager
    def pinned(self) -> Generator[None]:
        """Mark that a command or an agent loop of a plugin runs, so that the turn does not only wait."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1
            self._changed()


async def _call_prompt(one: ActivePlugin, prompt: Callable[[PluginContext], Any]) -> str:
    try:
        return await one.hook_limit("system_prompt").call(prompt, one.context)
    except CATCHABLE as error:
        if is_cancellation_requested(error):
            raise
        raise PluginError(f"plugin {one.name!r} failed in its system prompt: {error}") from error


def offered(plugin: Plugin, offer: Callable[[], Sequence[V]]) -> Sequence[V]:
    """Return what a plugin offers now; nothing if it fails to list it."""
    try:
        return offer()
    except CATCHABLE:  # a plain function cannot have been cancelled
        log.exception("a plugin failed to list its contributions", plugin=plugin.name)
        return ()
