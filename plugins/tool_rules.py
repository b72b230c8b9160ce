"""Tool rules: hide tools from some users, agents or channels, and block calls by their arguments.

In: ``[plugins.tool_rules.rules.NAME]``. Out: fewer tools for the model, and blocked calls. Permissions ask a
user about a call; these rules cannot be overruled by one. The plugin loader imports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway import Plugin, PluginContext, Tool, ToolBlock, ToolCall, TurnContext


class ToolRule(BaseModel):
    """A rule: which tools it forbids, to whom, and with which arguments."""

    model_config = ConfigDict(frozen=True)

    tools: tuple[str, ...] = Field(min_length=1, description='Names of tools; "*" stands for any text')
    roles: tuple[Literal["user", "admin"], ...] = Field(default=(), description="Roles; all if empty")
    agents: tuple[str, ...] = Field(default=(), description='Agents, such as "sub*"; all if empty')
    channels: tuple[str, ...] = Field(default=(), description="Channels by id; all if empty")
    arguments: tuple[re.Pattern[str], ...] = Field(
        default=(),
        description="Block only calls with an argument in which one of these regular expressions is found; "
        "without any, the tools are hidden",
    )

    @field_validator("arguments", mode="before")
    @classmethod
    def _compiled(cls, patterns: object) -> object:
        if not isinstance(patterns, list | tuple):
            return patterns
        return tuple(map(_compile, cast("Sequence[object]", patterns)))

    def applies(self, tool: str, ctx: TurnContext) -> bool:
        """Return whether the rule is about this tool in this turn."""
        wanted = ((tool, self.tools), (ctx.agent, self.agents), (ctx.inbound.address.channel, self.channels))
        if self.roles and ctx.role not in self.roles:
            return False
        return all(not globs or any(fnmatchcase(name, glob) for glob in globs) for name, globs in wanted)

    def forbids(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments is forbidden where the rule applies."""
        texts = [*_texts(arguments)]
        return not self.arguments or any(pattern.search(text) for pattern in self.arguments for text in texts)


class ToolRulesSettings(BaseModel):
    """The settings of the plugin: rules by names of the operator's choice."""

    rules: dict[str, ToolRule] = Field(default={}, description="Rules by name")


class ToolRules(Plugin):
    """The enforcement of the rules. An invalid rule stops the start, so that no rule is missing unnoticed."""

    name = "tool_rules"
    settings_model = ToolRulesSettings

    def __init__(self) -> None:
        self._rules: Mapping[str, ToolRule] = {}

    async def activate(self, ctx: PluginContext) -> None:
        """Read the rules."""
        self._rules = ctx.options(ToolRulesSettings).rules

    async def filter_tools(self, tools: tuple[Tool, ...], ctx: TurnContext) -> Sequence[Tool]:
        """Remove the tools that a rule without arguments forbids."""
        hiding = [rule for rule in self._rules.values() if not rule.arguments]
        return [tool for tool in tools if not any(rule.applies(tool.name, ctx) for rule in hiding)]

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolBlock | None:
        """Block a forbidden call; the model reads which rule forbids it."""
        for name, rule in self._rules.items():
            if rule.applies(call.name, ctx) and rule.forbids(call.arguments):
                return ToolBlock(
                    f"Error: the rule {name!r} of the operator forbids this call of {call.name}."
                )
        return None


def _compile(pattern: object) -> object:
    if not isinstance(pattern, str):
        return pattern
    try:
        return re.compile(pattern)
    except re.error as error:
        advice = "write a backslash before a character that stands for itself"
        raise ValueError(f"has {pattern!r}, which is not a regular expression ({error}); {advice}") from None


def _texts(value: object) -> Iterator[str]:
    """Yield every text and number in a JSON value, keys included, however deep."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, object]", value).items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[object]", value):
            yield from _texts(item)
    else:
        yield str(value)


plugin = ToolRules()
