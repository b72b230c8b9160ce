"""The plugin ``tool_rules``: hidden tools, blocked calls, and rules that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import Message, PluginError, ToolResultPart
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use
from plugins.tool_rules import ToolRules


def with_rule(**rule: Any) -> dict[str, Any]:
    return {"plugins": {"tool_rules": {"rules": {"mine": rule}}}}


def result_of(answer: Message) -> ToolResultPart:
    return next(part for part in answer.parts if isinstance(part, ToolResultPart))


def offered(chat: Chat) -> list[str]:
    return [tool.name for tool in chat.model.calls[-1].options.tools]


@pytest.mark.parametrize(
    ("rule", "hidden"),
    [
        ({"tools": ["calc*"]}, True),
        ({"tools": ["slow_count", "calculator"]}, True),
        ({"tools": ["calc"]}, False),
        ({"tools": ["calculator"], "roles": ["user"]}, True),
        ({"tools": ["calculator"], "roles": ["admin"]}, False),
        ({"tools": ["calculator"], "channels": ["test"]}, True),
        ({"tools": ["calculator"], "channels": ["telegram*"]}, False),
        ({"tools": ["calculator"], "agents": ["main"]}, True),
        ({"tools": ["calculator"], "agents": ["sub"]}, False),
        ({"tools": ["calculator"], "arguments": ["x"]}, False),
    ],
)
async def test_a_tool_is_hidden_where_a_rule_applies(
    tmp_path: Path, rule: dict[str, Any], hidden: bool
) -> None:
    async with chatting(tmp_path, ToolRules(), **with_rule(**rule)) as chat:
        await chat.say("hi")
        assert ("calculator" not in offered(chat)) == hidden
        assert "utc_time" in offered(chat)


async def test_a_call_with_forbidden_arguments_is_blocked(tmp_path: Path) -> None:
    rule = with_rule(tools=["calculator"], arguments=[r"\*\*", "^0$"])
    async with chatting(tmp_path, ToolRules(), **rule) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "9 ** 9"}'),), "tools"))
        blocked = result_of(await chat.say("9^9?"))
        chat.model.then(Reply((Use("calculator", '{"expression": "9 * 10"}'),), "tools"))
        ran = result_of(await chat.say("9 times 10?"))
    assert (blocked.output, blocked.is_error) == (
        "Error: the rule 'mine' of the operator forbids this call of calculator.",
        True,
    )
    assert (ran.output, ran.is_error) == ("90", False)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (
            {"tools": ["calculator"], "arguments": ["(a"]},
            "has '(a', which is not a regular expression (missing ), unterminated subpattern at position 0)",
        ),
        ({"tools": ["calculator"], "roles": ["guest"]}, "must be 'user' or 'admin'"),
        ({"tools": []}, "plugins.tool_rules.rules.mine.tools = []"),
    ],
)
async def test_a_rule_that_cannot_be_read_stops_the_start(
    tmp_path: Path, rule: dict[str, Any], complaint: str
) -> None:
    settings = with_rule(**rule)
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, ToolRules(), **settings):
            pass
    assert complaint in str(caught.value)
    assert "plugins.tool_rules.rules.mine." in str(caught.value)
