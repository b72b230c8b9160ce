"""Permissions: which tools may run, which need a person's word.

A rule is ``allow``, ``deny`` or ``ask``, or a map of globs to those, held in order against the text a tool
offers for it (its ``match_key``): the first glob that matches decides, none means deny. ``*`` matches
anything, slashes too. A rule of a role, ``shell@admin``, goes before the rule for everybody, ``shell``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import structlog

from gateway.channel import SenderRole
from gateway.errors import SettingsError
from gateway.tool import Tool

log = structlog.get_logger("trunkline.tools")

Action = Literal["allow", "deny", "ask"]
Rule = Action | Mapping[str, Action]


class Permissions:
    """The rules of an agent. A tool without a rule gets ``default``; ``*@admin`` is the default of a role."""

    def __init__(self, rules: Mapping[str, Rule] | None = None, default: Action = "allow") -> None:
        self._rules: dict[str, Rule] = dict(rules or {})
        self._default: Action = default

    def decide(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        role: SenderRole = "user",
        *,
        ask_by_default: bool = False,
    ) -> Action:
        """What the rules say of this call; whatever is unclear is denied.

        With ``ask_by_default`` only a rule that names the tool allows it.
        """
        rule = self._rule(tool.name, role)
        if rule is None:
            rule = self._rules.get(f"*@{role}", self._default)
            rule = "ask" if ask_by_default and rule == "allow" else rule
        if isinstance(rule, str):
            return rule
        key = match_text(tool, arguments)
        if key is None:
            return "deny"
        for glob, action in rule.items():
            if fnmatchcase(key, glob):
                return action
        return "deny"

    def check(self, tools: Mapping[str, Tool]) -> None:
        """Raise SettingsError for glob rules on a tool that offers nothing to match."""
        for name, rule in self._rules.items():
            tool = tools.get(name.partition("@")[0])
            if tool is not None and not isinstance(rule, str) and tool.match_key is None:
                raise SettingsError(
                    f"permissions.{name}: this tool offers nothing to match globs; use allow, deny or ask"
                )

    def _rule(self, name: str, role: SenderRole) -> Rule | None:
        """The rule that names a tool, if there is one."""
        own = self._rules.get(f"{name}@{role}")
        return self._rules.get(name) if own is None else own


def match_text(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """What globs are held against for this call; None when the tool has nothing, or fails to tell."""
    try:
        return tool.match_key(arguments) if tool.match_key is not None else None
    except Exception:
        log.exception("a tool could not tell what to match", tool=tool.name)
        return None
