"""Permissions: the tools that may run, and those that need an approval.

A rule is ``allow``, ``deny`` or ``ask``, or a map of patterns to those. The patterns are compared in order
with the key that the tool's ``match_key`` returns, in the way of its ``match_kind`` (``patterns``): the first
match decides, no match means deny. A rule for a role, ``shell@admin``, takes precedence over the general
rule, ``shell``.

Without any rule a tool runs without approval only if it is built in and declares that it only reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import structlog

from gateway import patterns
from gateway.access.rooms import Room
from gateway.contract.channel import SenderRole
from gateway.contract.errors import SettingsError
from gateway.contract.tool import Tool
from gateway.session import Turn

log = structlog.get_logger("trunkline.tools")

Action = Literal["allow", "deny", "ask"]
Rule = Action | Mapping[str, Action]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""TOML keys that need no quotes."""


class Judgement(NamedTuple):
    """The rules' decision about a call. ``rule`` is the name of the rule with its pattern, or default."""

    action: Action
    rule: str
    asks: bool
    """A rule demands a question about this call, not only the lack of a rule."""


class Permissions:
    """The rules of an agent.

    A tool that no rule names gets the default of the sender's role (``*@admin``), else ``default``. Where
    that is None too, a built-in tool that only reads is allowed and every other tool asks.
    """

    def __init__(self, rules: Mapping[str, Rule] | None = None, default: Action | None = None) -> None:
        self._rules: dict[str, Rule] = dict(rules or {})
        self._default: Action | None = default

    def decide(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        role: SenderRole = "user",
        *,
        built_in: bool = False,
        ask_by_default: bool = False,
    ) -> Action:
        """Return the action for this call; deny an unclear case.

        ``built_in``: the tool comes with Trunkline, so its ``read_only`` can be believed. With
        ``ask_by_default`` only a rule that names the tool allows it.
        """
        found = self.judge(tool, arguments, role, built_in=built_in, ask_by_default=ask_by_default)
        return found.action

    def judge(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        role: SenderRole,
        *,
        built_in: bool = False,
        ask_by_default: bool = False,
    ) -> Judgement:
        """Return the action for this call with the rule that it follows; see ``decide``."""
        names = (f"{tool.name}@{role}", tool.name, f"*@{role}")
        name = next((name for name in names if name in self._rules), None)
        named = self._default if name is None else self._rules[name]
        rule = self.rule_of(tool, role, built_in=built_in, ask_by_default=ask_by_default)
        if isinstance(rule, str):
            label = "default" if named is None else f"rule {name or '*'}"
            return Judgement(rule, label, named == "ask")
        # Once for all that follows from it: a plugin's code runs here.
        key = match_text(tool, arguments)
        pattern, action = ("", "deny") if key is None else patterns.find(tool.match_kind, rule, key)
        return Judgement(action, f"rule {name}: {pattern or 'no pattern matches'}", action == "ask")

    def rule_of(
        self, tool: Tool, role: SenderRole, *, built_in: bool = False, ask_by_default: bool = False
    ) -> Rule:
        """Return the rule for all calls of a tool; see ``decide``."""
        rule = self._rule(tool.name, role)
        if rule is None:
            rule = self._rules.get(f"*@{role}") or self._default
            if rule is None:
                return "allow" if built_in and tool.read_only else "ask"
            if ask_by_default and rule == "allow":
                rule = "ask"
        return rule

    def denies(self, name: str, role: SenderRole) -> bool:
        """Return whether the rules allow no call of a tool, for any arguments."""
        rule = self._rule(name, role)
        return (self._rules.get(f"*@{role}") or self._default if rule is None else rule) == "deny"

    def check(self, tools: Mapping[str, Tool], to_come: Callable[[str], bool] = lambda _name: False) -> None:
        """Raise SettingsError for rules of unknown tools, and for patterns that a tool's calls cannot match.

        A rule of a tool that may still come, by ``to_come``, is only logged.
        """
        for name, rule in self._rules.items():
            named = name.partition("@")[0]
            tool = tools.get(named)
            if tool is None and named not in ("", "*"):
                if not to_come(named):
                    raise SettingsError(f"permissions.{name}: unknown tool {named!r}; {_hint(named, tools)}")
                log.warning("a permission names a tool that is not known yet", tool=named)
            if tool is not None and not isinstance(rule, str) and tool.match_key is None:
                raise SettingsError(
                    f"permissions.{name}: this tool does not support glob rules; use allow, deny or ask"
                )
            if tool is not None and not isinstance(rule, str):
                _check_patterns(name, tool, rule)

    def _rule(self, name: str, role: SenderRole) -> Rule | None:
        """Return the rule that names a tool, or None."""
        own = self._rules.get(f"{name}@{role}")
        return self._rules.get(name) if own is None else own


def _check_patterns(name: str, tool: Tool, rule: Mapping[str, Action]) -> None:
    for pattern in rule:
        try:
            patterns.check(tool.match_kind, pattern)
        except ValueError as error:
            raise SettingsError(f"permissions.{name}: the pattern {pattern!r} {error}") from None


def _hint(name: str, tools: Iterable[str]) -> str:
    near = get_close_matches(name, tools := sorted(tools), n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"the tools are {', '.join(tools)}" if tools else "no plugin provides a tool"


def withheld_by(turn: Turn, tool: str, room: Room) -> str:
    """Return what took a tool away from a turn, for the trail: the room, its agent, its mode or a hook."""
    if room.tools is not None and tool not in room.tools:
        return "room"
    if turn.overrides.tools is not None and tool not in turn.overrides.tools:
        return f"agent {turn.agent}"
    return "mode" if turn.is_read_only else "hook"


def rule_to_add(tool: str) -> str:
    """Return the line of the settings that lets a tool run without an approval."""
    key = tool if _BARE.fullmatch(tool) else '"{}"'.format(tool.replace("\\", "\\\\").replace('"', '\\"'))
    return f'permissions.{key} = "allow"'


def match_text(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return the key that patterns are compared with; None if the tool has no text or fails to return it."""
    try:
        return tool.match_key(arguments) if tool.match_key is not None else None
    except Exception:
        log.exception("match_key of a tool failed", tool=tool.name)
        return None


def always_text(tool: Tool, key: str) -> str | None:
    """Return the text that an "always" for a call with this key stores; None if it cannot be offered."""
    return patterns.offer(tool.match_kind, key)
