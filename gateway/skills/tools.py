"""The built-in plugin of skills: their list in the system prompt, two tools, and what ``allowed-tools`` does.

A skill narrows the tools from its loading to the end of the answer, of nested runs too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field

from gateway import patterns
from gateway.access.permissions import match_text
from gateway.contract.errors import PluginError, ToolError
from gateway.contract.messages import DisplayHints, ToolCallPart
from gateway.contract.plugin import Plugin, PluginContext, RegistryView, ToolBlock, ToolCall, TurnContext
from gateway.contract.tool import Tool, ToolContext, ToolOutput, tool_from
from gateway.files.outputs import READ_OUTPUT
from gateway.models import Agents
from gateway.session import Turn, running
from gateway.skills.library import SkillLibrary
from gateway.skills.skill import Skill, ToolRule

_INTRODUCTION = (
    "Skills are instructions for certain tasks. If one fits the task, call the tool skill with its name "
    "before you begin, and follow it. A skill that is not listed here does not exist."
)
_HOOKS = ("transform_system_prompt", "filter_tools", "before_tool_exec")

SkillName = Annotated[str, Field(description="Name of a listed skill")]


class SkillsSettings(BaseModel):
    """The plugin has no settings."""


class SkillTools(Plugin):
    """The tools ``skill`` and ``skill_file``. ``refresh`` is called when its hooks have come or gone."""

    # The beginning of the names of its tools: a permission may then name them while there are no skills.
    name = "skill"
    settings_model = SkillsSettings

    def __init__(self, library: SkillLibrary, agents: Agents, refresh: Callable[[], None]) -> None:
        self.library = library
        self._refresh = refresh
        self._agents = agents
        self._loaded = WeakKeyDictionary[Turn, dict[str, Skill]]()
        """The skills that a turn or its nested runs have loaded, by name."""
        self._registry: RegistryView | None = None
        self._tools = tuple(
            tool_from(
                function,
                display=DisplayHints(verb=verb, fields={"name": "name"}),
                match_key=_name_of,
                idempotent=True,
                read_only=True,
            )
            for function, verb in ((self.skill, "loading a skill"), (self.skill_file, "reading a skill"))
        )
        self._own = frozenset((*(tool.name for tool in self._tools), READ_OUTPUT))
        library.on_change = self._follow

    async def activate(self, ctx: PluginContext) -> None:
        """Read the skills of the folders."""
        self._registry = ctx.registry
        await asyncio.to_thread(self.library.load)

    def tools(self) -> Sequence[Tool]:
        """Return the two tools, once there are skills."""
        return self._tools if self.library.skills else ()

    def _follow(self) -> None:
        """Have hooks only while there are skills, so that a turn without any pays nothing."""
        had_any = _HOOKS[0] in vars(self)
        for hook in _HOOKS:
            if self.library.skills:
                setattr(self, hook, getattr(self, f"_{hook}"))
            else:
                vars(self).pop(hook, None)
        if had_any is not bool(self.library.skills):
            self._refresh()

    async def skill(self, name: SkillName, context: ToolContext) -> ToolOutput:
        """Load the instructions of a skill. Call it before you begin a task that one of the skills fits."""
        found, turn = self._find(name), running.get()
        if turn is not None:
            self._loaded.setdefault(turn, {})[name] = found
        elif found.allowed_tools is not None:
            raise ToolError(f"the skill {name!r} limits the tools, which is not possible in this answer")
        lines = [found.body]
        if found.digests:
            lines.append(f"Files of this skill, for skill_file: {', '.join(found.digests)}")
            lines.append(f"They are below {found.folder}")
        if found.allowed_tools is not None:
            lines.append(f"Until the end of your answer you have only these tools: {_listed(found)}")
        return ToolOutput("\n\n".join(lines), untrusted=found.untrusted)

    async def skill_file(
        self,
        name: SkillName,
        path: Annotated[str, Field(description="Path of a file that the skill lists")],
        context: ToolContext,
    ) -> ToolOutput:
        """Read a file of a skill, as its instructions say."""
        found = self._find(name)
        try:
            text = await asyncio.to_thread(found.read, path)
        except PluginError as error:
            raise ToolError(str(error)) from None
        return ToolOutput(text, untrusted=found.untrusted)

    async def _transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str | None:
        found = self._offered(ctx)
        lines = [f"- {name}: {skill.description}" for name, skill in found.items()]
        return "\n\n".join(filter(None, (prompt, "\n".join((_INTRODUCTION, *lines))))) if lines else None

    async def _filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> Sequence[Tool] | None:
        hidden = frozenset[str]() if self._offered(ctx) else frozenset(tool.name for tool in self._tools)
        active = self._active()
        if not hidden and not active:
            return None
        left = (tool for tool in tools if tool.name not in hidden)
        return [tool for tool in left if tool.name in self._own or all(_names(s, tool) for s in active)]

    async def _before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolBlock | None:
        if any(call.name == tool.name for tool in self._tools):
            name = call.arguments.get("name")
            if name in self.library.skills and name not in self._offered(ctx):
                return ToolBlock(f"Error: this agent may not use the skill {name!r}.")
            return None
        if call.name in self._own or self._registry is None:
            return None
        tool = next((each for each in self._registry.get_tools() if each.name == call.name), None)
        for skill in self._active():
            if not any(_allows(rule, tool, call) for rule in skill.allowed_tools or ()):
                return ToolBlock(
                    f"Error: the skill {skill.name!r} does not allow this call; it allows {_listed(skill)}."
                )
        return None

    def _offered(self, ctx: TurnContext) -> Mapping[str, Skill]:
        """Return the skills that an agent may use; a nested run never has more than its turn."""
        turn = running.get()
        names = (ctx.agent, *((turn.agent,) if turn is not None else ()))
        limits = [self._agents.get(name).skills for name in names]
        skills = self.library.skills
        return {n: s for n, s in skills.items() if all(limit is None or n in limit for limit in limits)}

    def _active(self) -> list[Skill]:
        """Return the loaded skills of the running turn that narrow its tools."""
        turn = running.get()
        if turn is None:
            return []
        found = dict(self._loaded.get(turn, {}))
        if turn.is_repeated:
            # An attempt before a crash may have loaded them.
            parts = (part for _, part in turn.assembler.parts_from(0) if isinstance(part, ToolCallPart))
            names = {part.arguments.get("name") for part in parts if part.tool_name == "skill"}
            found = {name: skill for name, skill in self.library.skills.items() if name in names} | found
        return [skill for skill in found.values() if skill.allowed_tools is not None]

    def _find(self, name: str) -> Skill:
        found = self.library.skills.get(name)
        if found is None:
            raise ToolError(f"there is no skill {name!r}; the system prompt lists them")
        return found


def _names(skill: Skill, tool: Tool) -> bool:
    return any(fnmatchcase(tool.name, rule.tool) for rule in skill.allowed_tools or ())


def _allows(rule: ToolRule, tool: Tool | None, call: ToolCall) -> bool:
    """Return whether an item of ``allowed-tools`` covers a call."""
    if tool is None or not fnmatchcase(tool.name, rule.tool):
        return False
    if not rule.pattern:
        return True
    key = match_text(tool, call.arguments)
    return key is not None and patterns.decide(tool.match_kind, {rule.pattern: "allow"}, key) != "deny"


def _listed(skill: Skill) -> str:
    return ", ".join(map(str, skill.allowed_tools or ())) or "none"


def _name_of(arguments: Mapping[str, Any]) -> str:
    return arguments["name"]
