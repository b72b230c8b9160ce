"""Prompts of servers as commands: typed in a chat, made by the server, and answered by the model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway import Plugin, SlashCommand, Tool, ToolResultPart, tool_from
from gateway.mcp.commands import arguments_of
from gateway.mcp.definitions import Prompt
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use

from .conftest import Servers, plugin, server, until, use

pytestmark = pytest.mark.slow


async def test_a_prompt_is_a_command_whose_text_the_model_answers(servers: Servers) -> None:
    async with servers.chat("prompts") as chat:
        assert (await chat.say("/demo_greet Ada")).text == "You said: Greet Ada, kindly."
        assert (await chat.say("/demo_greet tone=loudly Ada Lovelace")).text == (
            "You said: Greet Ada Lovelace, loudly."
        )
        assert (await chat.say("/demo_greet tone=loudly")).text == "Usage: /demo_greet <who> [tone]"
        assert (await chat.say("/demo_talk")).text == (
            "You said: user: Hello\n\nassistant: Hi\n\nuser: [an attachment is left out]"
        )
        shown = {each.name: each.description for each in chat.host.commands()}
        assert shown["demo_greet"] == "Greet a person"
        assert shown["demo_talk"] == "Send a text of demo"


async def test_known_prompts_start_no_server_before_their_use(servers: Servers) -> None:
    async with servers.chat("prompts"):
        pass
    # The start takes longer than a hook may take.
    settings = {"mcp": {"demo": servers.settings("prompts")}, "plugins": {"mcp": {"hook_timeout_ms": 20}}}
    async with chatting(servers.tmp / "data", **settings) as chat:
        assert "demo_greet" in {each.name for each in chat.host.commands()}
        assert (await chat.say("/demo_greet")).text == "Usage: /demo_greet <who> [tone]"
        assert (servers.starts, server(chat).status.state) == (1, "idle")
        assert (await chat.say("/demo_greet Ada")).text == "You said: Greet Ada, kindly."
        assert servers.starts == 2


async def test_the_text_of_a_prompt_counts_as_content_from_outside(servers: Servers) -> None:
    async def note() -> str:
        """Note something."""
        return "noted"

    class Notes(Plugin):
        name = "notes"

        def tools(self) -> Sequence[Tool]:
            return (tool_from(note),)

    settings = {"demo": servers.settings("prompts")}
    async with chatting(servers.tmp / "data", Notes(), mcp=settings) as chat:
        await until(lambda: server(chat).status.tools)
        for text, told in (("go", "noted"), ("/demo_greet Ada", "holds content from outside")):
            chat.model.then(Reply((Use("note"),), "tools"), Reply((Say("Done."),)))
            answer = await chat.say(text, unattended=True)
            (output,) = [part.output for part in answer.parts if isinstance(part, ToolResultPart)]
            assert told in output


async def test_no_command_of_another_plugin_is_replaced(servers: Servers) -> None:
    async def execute(rest: str, _ctx: object) -> str:
        return f"mine: {rest}"

    class Other(Plugin):
        name = "other"

        def commands(self) -> Sequence[SlashCommand]:
            return (SlashCommand("demo_greet", "Be here first", execute),)

    settings = {"demo": servers.settings("prompts")}
    async with chatting(servers.tmp / "data", Other(), mcp=settings) as chat:
        await until(lambda: server(chat).status.tools)
        assert (await chat.say("/demo_greet Ada")).text == "mine: Ada"
        assert "demo_greet" not in {each.name for each in plugin(chat).commands()}
        assert "demo_talk" in {each.name for each in plugin(chat).commands()}


async def test_a_prompt_that_fails_says_why_and_runs_no_command(servers: Servers) -> None:
    async with servers.chat("prompts") as chat:
        before = len(chat.model.calls)
        for name, told in (
            ("slash", "/demo_slash cannot begin its text with a command."),
            ("fail", "/demo_fail failed: the MCP server 'demo' answered: not fail"),
            ("none", "/demo_none failed: the MCP server 'demo' sent no text"),
            ("big", "'demo' answered: its text has more than 64,000 characters"),
            ("die", "/demo_die failed: the MCP server 'demo' failed: it ended"),
        ):
            assert told in (await chat.say(f"/demo_{name}")).text
        assert len(chat.model.calls) == before
        assert (await chat.say("/demo_greet Ada")).text == "You said: Greet Ada, kindly."


async def test_odd_prompts_are_left_out_or_cleaned(servers: Servers) -> None:
    async with servers.chat("prompts") as chat:
        offered = {each.name: each.description for each in plugin(chat).commands()}
        assert offered["demo_odd_name"] == "ab " + "c" * 197
        assert server(chat).status.left_out == (
            "the prompt 'untypable', whose arguments cannot be typed",
            "the prompt 'greet', which is not a name or listed twice",
        )
    async with servers.chat("many prompts") as chat:
        await server(chat).connect()
        assert len(plugin(chat).commands()) == 50


async def test_a_changed_list_of_prompts_is_read_while_the_server_runs(servers: Servers) -> None:
    async with servers.chat("prompts") as chat:
        assert "demo_later" not in {each.name for each in plugin(chat).commands()}
        assert (await use(chat, "demo_run", what="prompts changed")).output == "did prompts changed"
        await until(lambda: "demo_later" in {each.name for each in plugin(chat).commands()})


async def test_a_server_may_have_prompts_only_and_its_later_tools_wait(servers: Servers) -> None:
    settings = {"demo": servers.settings("only prompts")}
    async with chatting(servers.tmp / "data", mcp=settings) as chat:
        await until(plugin(chat).commands)
        assert (await chat.say("/demo_greet Ada")).text == "You said: Greet Ada, kindly."
    (servers.folder / "tools").touch()
    async with chatting(servers.tmp / "data", mcp=settings) as chat:
        assert server(chat).status.state == "idle"
        await server(chat).connect()
        assert (plugin(chat).tools(), server(chat).status.waiting) == ((), 3)


async def test_a_disabled_server_has_no_commands(servers: Servers) -> None:
    async with servers.chat("prompts"):
        pass
    settings = {"demo": servers.settings("prompts", enabled=False)}
    async with chatting(servers.tmp / "data", mcp=settings) as chat:
        assert plugin(chat).commands() == ()
        assert "Unknown command" in (await chat.say("/demo_greet Ada")).text


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("a", {"who": "a"}),
        ("a b c", {"who": "a", "tone": "b c"}),
        ('"a b" c', {"who": "a b", "tone": "c"}),
        ('tone="b c" a', {"who": "a", "tone": "b c"}),
        ("who=a", {"who": "a"}),
        ("who=a tone=b", {"who": "a", "tone": "b"}),
        ("x=1", {"who": "x=1"}),
        ("who=a who=b", {"who": "a", "tone": "who=b"}),
        ("who=a tone=b c", None),
        ("tone=b", None),
        ("", None),
    ],
)
def test_arguments_are_given_by_name_or_in_order(typed: str, given: dict[str, str] | None) -> None:
    assert arguments_of(Prompt("greet", "", {"who": True, "tone": False}), typed) == given
