"""The parts of a plugin beside its code: skills, agents and prompt commands. They need no process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from gateway.contract.errors import PluginError, SettingsError
from gateway.contract.plugin import CommandContext, SlashCommand, UserInput
from gateway.contract.services import Unregister
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.fields import Report, hidden
from gateway.extensions.admission.locations import SHIPPED_SOURCE
from gateway.extensions.admission.manifest import Admitted
from gateway.models import Agents
from gateway.plugin_services.bundles.prompts import PromptCommand, PromptTurns, read_prompts
from gateway.plugin_services.bundles.servers import (
    PluginServer,
    PluginServers,
    check_servers,
    granted_servers,
    read_servers,
)
from gateway.settings import AgentSettings, PluginSettings
from gateway.settings.agents import FOLDER as AGENTS
from gateway.settings.agents import agent_files, read_agents
from gateway.skills import Skill, SkillLibrary, read_below, skills_of_plugin

SKILL_TOOLS = frozenset(("skill", "skill_file"))


class Parts(Struct, frozen=True):
    """The parts of a plugin's folder beside its code."""

    skills: tuple[Skill, ...] = ()
    agents: Mapping[str, AgentSettings] = {}
    prompts: tuple[PromptCommand, ...] = ()
    servers: tuple[PluginServer, ...] = ()

    def describe(self) -> list[str]:
        """Return one sentence for each kind of part."""
        lists = {
            "teaches models the skills": [each.name for each in self.skills],
            "adds the agents": list(self.agents),
            "adds commands that send its text to the model:": [f"/{each.name}" for each in self.prompts],
        }
        parts = [f"{what} {', '.join(names)}" for what, names in lists.items() if names]
        return parts + [f"has the MCP server {each.name}, which {each.what}" for each in self.servers]


def read_parts(folder: Path, *, untrusted: bool = True) -> Parts:
    """Return the parts in a plugin's folder. Raises PluginError if one of them has a mistake."""
    base = folder / AGENTS
    for file in agent_files(base):
        if complaints := Report([*hidden(read_below(base, file.name))]).lines(str(file)):
            raise PluginError("\n".join(complaints))
    try:
        agents = read_agents(base)
    except SettingsError as error:
        raise PluginError(str(error)) from None
    skills, prompts = skills_of_plugin(folder, untrusted=untrusted), read_prompts(folder)
    return Parts(tuple(skills), agents, tuple(prompts), read_servers(folder))


class ActiveParts:
    """The parts of one plugin, in a gateway. Its agents may use the tools of the plugin and ``agent_tools``.

    ``servers`` adds its MCP servers. ``untrusted``: in an answer to a prompt command tools ask as after
    content from outside.
    """

    def __init__(
        self,
        plugin: str,
        parts: Parts,
        library: SkillLibrary,
        agents: Agents,
        agent_tools: Collection[str],
        servers: Callable[[], Unregister],
        *,
        untrusted: bool,
    ) -> None:
        self._plugin = plugin
        self._parts = parts
        self._add_servers = servers
        self._untrusted = untrusted
        self._turns = PromptTurns()
        self._library = library
        self._agents = agents
        self._tools = frozenset((*agent_tools, *(SKILL_TOOLS if parts.skills else ())))
        self._added: list[Unregister] = []
        self.commands = tuple(
            SlashCommand(each.name, each.description or f"Send a text of {plugin}", partial(_show, each))
            for each in parts.prompts
        )

    def add(self, tools: Collection[str]) -> None:
        """Offer the parts; ``tools`` are those of the plugin."""
        self._added.append(self._agents.add(self._plugin, self._parts.agents, self._tools | {*tools}))
        self._added.append(self._library.add(self._plugin, self._parts.skills))
        if self._parts.servers:
            self._added.append(self._add_servers())

    def remove(self) -> None:
        """Take the parts back."""
        self.commands = ()
        while self._added:
            self._added.pop()()

    def transform(self, text: str) -> UserInput | None:
        """Replace a prompt command of this plugin by its text."""
        typed = self._turns.typed(text, self.commands)
        if typed is None:
            return None
        prompt = self._parts.prompts[typed[0]]
        return self._turns.answer(prompt.name, prompt.usage, prompt.expand(typed[1]))

    def begin(self) -> None:
        """Let the tools of an answer ask if its question is a text of an unknown author."""
        if self._untrusted:
            self._turns.begin()


class PartServices(Struct, frozen=True):
    """The services to which the parts of plugins are added."""

    library: SkillLibrary
    agents: Agents
    servers: PluginServers

    def of(self, admitted: Admitted, settings: PluginSettings, holds: Callable[[Grant], bool]) -> ActiveParts:
        """Return the parts of a plugin. Raises PluginError for a mistake, and if there is nothing at all.

        ``holds`` returns whether a grant was given.
        """
        manifest = admitted.manifest
        untrusted = admitted.trust != "full" and not admitted.source.startswith(SHIPPED_SOURCE)
        parts = read_parts(admitted.folder, untrusted=untrusted)
        check_servers(manifest, parts.servers)
        if not manifest.entry:
            if parts == Parts() and not manifest.tools:
                raise PluginError(
                    f"plugin {manifest.name!r} has no code and no tools, skills, agents, commands or MCP "
                    "servers; add a file such as main.py or skills/NAME/SKILL.md"
                )
            names = {each.name for each in parts.prompts}
            if missing := sorted({*(manifest.commands or ())} - names):
                raise PluginError(
                    f"commands in plugin.yml lists {missing[0]!r}, but the folder has neither code nor "
                    f"commands/{missing[0]}.md; remove it"
                )

        def add_servers() -> Unregister:
            return self.servers.add(manifest.name, dict(granted_servers(admitted, parts.servers, holds)))

        own = (parts, self.library, self.agents, settings.agent_tools, add_servers)
        return ActiveParts(manifest.name, *own, untrusted=untrusted)


async def _show(prompt: PromptCommand, rest: str, _ctx: CommandContext) -> str:
    """Show the text where no model answers."""
    return prompt.expand(rest) or f"Usage: {prompt.usage}"
