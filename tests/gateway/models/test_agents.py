"""Agents as the settings describe them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    Plugin,
    PluginContext,
    SettingsError,
    Tool,
    ToolContext,
    TurnContext,
    tool_from,
)
from gateway.app import Gateway
from gateway.settings import Settings, load_settings
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use


class Office(Plugin):
    """Lets the model hand tasks on, and remembers who worked when."""

    name = "office"

    def __init__(self) -> None:
        self.agents: list[str] = []

    def tools(self) -> list[Tool]:
        async def delegate(task: str, agent: str, ctx: ToolContext) -> str:
            """Hand a task on.

            Args:
                task: What to do.
                agent: UserRef shall do it.
            """
            return await ctx.run_nested(task, agent=agent)

        async def stamp() -> str:
            """Stamp it."""
            return "stamped"

        return [tool_from(delegate), tool_from(stamp)]

    async def after_agent_run(self, reason: str, ctx: TurnContext) -> None:
        self.agents.append(ctx.agent)


def hand_to(agent: str) -> Reply:
    """The model hands a task to an agent."""
    return Reply((Use("delegate", f'{{"task": "Look", "agent": "{agent}"}}'),), "tools")


async def test_hooks_get_the_name_of_the_agent(tmp_path: Path) -> None:
    office = Office()
    async with chatting(tmp_path, office, agents={"clerk": {}}) as chat:
        await chat.say("hi")
        await chat.say("/agent clerk")
        await chat.say("hi")
    assert office.agents == ["main", "clerk"]


async def test_004_41_a_nested_run_goes_by_the_settings_of_its_agent(tmp_path: Path) -> None:
    agents = {
        "clerk": {
            "model": "script/form",
            "system_prompt": "Fill in forms.",
            "temperature": 0.5,
            "effort": "high",
            "tools": ["stamp"],
        }
    }
    async with chatting(tmp_path, Office(), agents=agents, effort="low") as chat:
        chat.model.then(hand_to("clerk"), Reply((Say("Form B."),)))
        await chat.say("Ask the clerk")
        outer, inner, *_ = (call.options for call in chat.model.calls)
    assert (inner.model, inner.temperature, inner.effort) == ("form", 0.5, "high")
    assert outer.effort == "low"
    assert inner.system_prompt.startswith("Fill in forms.")
    assert [tool.name for tool in inner.tools] == ["stamp"]
    assert {"delegate", "stamp"} <= {tool.name for tool in outer.tools}
    assert outer.model == "one"


async def test_an_agent_that_may_use_little_cannot_lend_more(tmp_path: Path) -> None:
    agents: Mapping[str, Any] = {"clerk": {"tools": ["delegate"]}, "boss": {"model": "script/boss"}}
    async with chatting(tmp_path, Office(), agents=agents) as chat:
        await chat.say("/agent clerk")
        for agent in ("somebody", "boss"):
            chat.model.then(hand_to(agent), Reply((Say("Well."),)))
            await chat.say("Ask somebody")
        nested = [call.options for call in chat.model.calls if call.messages[0].text == "Look"]
    assert [[tool.name for tool in options.tools] for options in nested] == [["delegate"], ["delegate"]]
    assert [options.model for options in nested] == ["one", "boss"]


@pytest.mark.parametrize(
    ("said", "model"),
    [
        ({"provider": "script", "model": "two"}, "two"),
        ({"provider": "script", "model": "script/two"}, "two"),
        ({"provider": "script", "model": "vendor/two"}, "vendor/two"),
        ({"provider": "script"}, "first"),
        ({"model": "fast"}, "quick"),
        ({}, "one"),
    ],
)
async def test_004_34_an_agent_may_say_the_provider_of_its_model(
    tmp_path: Path, said: Mapping[str, Any], model: str
) -> None:
    settings: dict[str, Any] = {
        "agents": {"clerk": said},
        "providers": {"script": {"models": ["first"]}},
        "aliases": {"fast": "script/quick"},
    }
    async with chatting(tmp_path, **settings) as chat:
        await chat.say("/agent clerk")
        await chat.say("hi")
    assert [call.options.model for call in chat.model.calls] == [model]


async def test_a_provider_that_no_plugin_brings_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        async with chatting(tmp_path, agents={"clerk": {"provider": "scrpt"}}):
            pass
    assert str(caught.value) == "agents.clerk.provider = 'scrpt' is not a provider; did you mean script?"


async def test_an_unknown_tool_is_reported_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with chatting(tmp_path, Office(), agents={"clerk": {"tools": ["stmp", "delegate"]}}):
        pass
    [line] = [line for line in capsys.readouterr().out.splitlines() if "an unknown tool is listed" in line]
    assert "key=agents.clerk.tools" in line
    assert "near=stamp" in line
    assert "tool=stmp" in line


async def test_a_channel_with_an_agent_that_there_is_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[agents.support]\n[channels.phone]\nagent = "suport"\n'
        '[channels.phone.accounts.desk]\nagent = "zzz"\n'
    )
    settings = load_settings(file, environ={"TRUNKLINE_DATA_DIR": str(tmp_path)}, cwd=tmp_path)
    with pytest.raises(SettingsError) as caught:
        async with Gateway(settings).running():
            pass
    assert str(caught.value).splitlines() == [
        "2 settings are wrong:",
        '  own.toml:3: channels.phone.agent = "suport" is not an agent; '
        "did you mean support? known: main, support, general, explore, plan",
        '  own.toml:5: channels.phone.accounts.desk.agent = "zzz" is not an agent; '
        "known: main, support, general, explore, plan",
    ]


async def test_a_channel_may_have_an_agent_that_only_a_plugin_brings(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/poet.md").write_text("---\nmodel: script/rhyme\n---\nRhyme.")

    class Poets(Plugin):
        name = "poets"

        async def activate(self, ctx: PluginContext) -> None:
            assert ctx.agents is not None
            ctx.agents.register_source(tmp_path / "theirs")

    async with chatting(tmp_path, Poets(), channels={"test": {"agent": "poet"}}) as chat:
        await chat.say("hi")
    [call] = chat.model.calls
    assert (call.options.model, call.options.system_prompt[:6]) == ("rhyme", "Rhyme.")
    with pytest.raises(SettingsError) as caught:
        async with chatting(tmp_path, Poets(), channels={"test": {"agent": "poe"}}):
            pass
    assert str(caught.value) == (
        'channels.test.agent = "poe" is not an agent; did you mean poet? '
        "known: main, general, explore, plan, poet"
    )


def test_a_name_is_an_alias_or_an_agent() -> None:
    with pytest.raises(ValueError, match="has 'fast', which is also an alias of a model"):
        Settings(agents={"fast": {}}, aliases={"fast": "openai/gpt-5"})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("main", "the settings outside of it describe that agent"),
        ("default", "one word"),
        ("a b", "one word"),
    ],
)
def test_names_that_mean_something_else_are_refused(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings(agents={name: {}})
