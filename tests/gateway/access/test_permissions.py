"""Which rule holds for which call."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, SettingsError, Tool, ToolContext, tool_from
from gateway.access.permissions import Action, Permissions, rule_to_add
from gateway.provider_http import ToolDefinition
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Use


async def nothing(_arguments: Any, _context: ToolContext) -> str:
    return ""


PLAIN = Tool(definition=ToolDefinition("shell", "Run.", {"type": "object"}), execute=nothing)
KEYED = Tool(definition=PLAIN.definition, execute=nothing, match_key=lambda arguments: arguments["command"])

RULES = {"git push *": "ask", "git *": "allow", "rm -rf *": "deny", "cat *": "allow"}


@pytest.mark.parametrize(
    ("command", "action"),
    [
        ("git push origin", "ask"),
        ("git diff src/a.ts", "allow"),
        ("rm -rf /", "deny"),
        ("cat /etc/passwd", "allow"),
        ("ls", "deny"),
        ("Git diff", "deny"),
    ],
)
def test_002_14_the_first_glob_that_matches_decides_and_none_means_deny(command: str, action: Action) -> None:
    assert Permissions({"shell": RULES}).decide(KEYED, {"command": command}) == action


@pytest.mark.parametrize("arguments", [{}, {"command": None}])
def test_002_14_a_key_that_cannot_be_computed_is_denied(arguments: dict[str, Any]) -> None:
    assert Permissions({"shell": {"*": "allow"}}).decide(KEYED, arguments) == "deny"


@pytest.mark.parametrize("action", ["allow", "deny", "ask"])
def test_002_14_a_tool_without_a_key_takes_plain_actions(action: Action) -> None:
    permissions = Permissions({"shell": action}, "deny")
    permissions.check({"shell": PLAIN})
    assert permissions.decide(PLAIN, {}) == action


def test_002_14_globs_for_a_tool_without_a_key_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"permissions\.shell"):
        Permissions({"shell": RULES}).check({"shell": PLAIN})
    Permissions({"shell": RULES}).check({"shell": KEYED})


READS = Tool(definition=PLAIN.definition, execute=nothing, read_only=True)


@pytest.mark.parametrize(
    ("tool", "built_in", "action"),
    [(READS, True, "allow"), (READS, False, "ask"), (PLAIN, True, "ask"), (PLAIN, False, "ask")],
)
def test_without_a_rule_only_a_built_in_tool_that_only_reads_runs_unasked(
    tool: Tool, built_in: bool, action: Action
) -> None:
    assert Permissions().decide(tool, {}, built_in=built_in) == action
    for rule in ("allow", "ask", "deny"):
        assert Permissions({"other": "allow"}, rule).decide(tool, {}, built_in=built_in) == rule
        assert Permissions({"shell": rule}).decide(tool, {}, built_in=built_in) == rule


@pytest.mark.parametrize(
    ("tool", "rule"),
    [
        ("shell", 'permissions.shell = "allow"'),
        ("worker:shell", 'permissions."worker:shell" = "allow"'),
        ('a"b\\c', 'permissions."a\\"b\\\\c" = "allow"'),
    ],
)
def test_the_rule_to_add_is_written_as_the_settings_take_it(tool: str, rule: str) -> None:
    assert rule_to_add(tool) == rule
    assert tomllib.loads(rule) == {"permissions": {tool: "allow"}}


@pytest.mark.parametrize(
    ("rules", "user", "admin"),
    [
        ({"shell": "deny", "shell@admin": "ask"}, "deny", "ask"),
        ({"shell@user": "deny"}, "deny", "allow"),
        ({"shell": "ask", "shell@user": "deny", "shell@admin": "allow"}, "deny", "allow"),
        ({"*@admin": "ask"}, "allow", "ask"),
        ({"shell": "deny", "*@admin": "allow"}, "deny", "deny"),
        ({"other": "deny", "other@admin": "deny"}, "allow", "allow"),
    ],
)
def test_a_rule_of_a_role_goes_before_the_rule_for_everybody(
    rules: dict[str, Action], user: Action, admin: Action
) -> None:
    permissions = Permissions(rules, "allow")
    assert permissions.decide(PLAIN, {}, "user") == permissions.decide(PLAIN, {}) == user
    assert permissions.decide(PLAIN, {}, "admin") == admin


def test_globs_of_a_role_for_a_tool_without_a_key_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"permissions\.shell@admin"):
        Permissions({"shell@admin": RULES}).check({"shell": PLAIN})
    by_role = Permissions({"shell@admin": RULES}, "deny")
    assert by_role.decide(KEYED, {"command": "git diff"}, "admin") == "allow"
    assert by_role.decide(KEYED, {"command": "git diff"}, "user") == "deny"


def test_a_rule_is_named_with_its_pattern() -> None:
    rules = Permissions({"shell": RULES, "plain": "ask"})
    assert rules.judge(KEYED, {"command": "git diff"}, "user").rule == "rule shell: git *"
    assert rules.judge(KEYED, {"command": "whoami"}, "user").rule == "rule shell: no pattern matches"
    assert Permissions({"shell": "ask"}).judge(KEYED, {}, "user").rule == "rule shell"
    assert Permissions({}, "deny").judge(KEYED, {}, "user").rule == "rule *"
    assert Permissions({}).judge(KEYED, {}, "user").rule == "default"


async def test_002_14_globs_that_match_nothing_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="utc_time"):
        async with chatting(tmp_path, permissions={"utc_time": {"*": "ask"}}):
            pass


async def test_the_text_that_patterns_match_is_asked_for_once_in_a_call(tmp_path: Path) -> None:
    asked: list[str] = []

    def key(arguments: Any) -> str:
        asked.append(arguments["command"])
        return arguments["command"]

    class Shell(Plugin):
        name = "shell"

        def tools(self) -> Sequence[Tool]:
            return (tool_from(self.run, match_key=key),)

        async def run(self, command: str) -> str:
            """Run a command."""
            return command

    rules = {"run": {"git *": "allow"}}
    async with chatting(tmp_path, Shell(), permissions=rules) as chat:
        for command in ("git log", "rm log"):
            chat.model.then(Reply((Use("run", f'{{"command": "{command}"}}'),), "tools"))
            await chat.say("go")
    assert asked == ["git log", "rm log"]
