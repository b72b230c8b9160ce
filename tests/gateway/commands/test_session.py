"""Slash commands: those of plugins, and the six that are built in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway import CommandContext, ErrorPart, Message, Plugin, SlashCommand, ToolError
from gateway.session.frames import TurnStart
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Tokens


class Shouting(Plugin):
    """Two commands: one that answers and remembers what it knew, one that fails in its own way."""

    name = "shouting"

    def __init__(self) -> None:
        self.calls: list[tuple[str, CommandContext]] = []
        self.failure: Exception = ToolError("too loud")

    def commands(self) -> Sequence[SlashCommand]:
        async def shout(rest: str, ctx: CommandContext) -> str | None:
            self.calls.append((rest, ctx))
            return rest.upper() or None

        async def fail(rest: str, ctx: CommandContext) -> str:
            raise self.failure

        return [
            SlashCommand("shout", "Say it louder", shout),
            SlashCommand("fail", "Go wrong", fail),
            SlashCommand("help", "Never reached: the name is taken", fail),
        ]


def texts(messages: Sequence[Message]) -> list[str]:
    """The visible texts of messages."""
    return [message.text for message in messages]


async def test_002_16_a_command_gets_arguments_messages_directory_and_settings(tmp_path: Path) -> None:
    plugin = Shouting()
    settings = {"plugins": {"shouting": {"volume": 11}}}
    async with chatting(tmp_path, plugin, **settings) as chat:
        await chat.say("hi")
        assert (await chat.say("/shout  hear\nme ")).text == "HEAR\nME"
    [(rest, ctx)] = plugin.calls
    assert rest == "hear\nme"
    assert texts(ctx.messages) == ["hi", "You said: hi"]
    assert (ctx.cwd, ctx.config) == (str(tmp_path), {"volume": 11})
    assert (ctx.session, ctx.sender.id) == ("s", "ada")


async def test_002_16_a_command_never_reaches_the_model_and_is_kept(tmp_path: Path) -> None:
    async with chatting(tmp_path, Shouting()) as chat:
        await chat.say("/shout hey")
        await chat.say("hi")
        assert texts(chat.model.calls[0].messages) == ["hi"]
        stored = texts([message for _, message in await chat.gateway.parts.sessions.read("s")])
    assert stored == ["/shout hey", "HEY", "hi", "You said: hi"]


async def test_a_command_that_says_nothing_settles_its_message(tmp_path: Path) -> None:
    async with chatting(tmp_path, Shouting()) as chat:
        assert await chat.host.submit(written("/shout")) is None
        assert (await chat.gateway.parts.sessions.find("s")).pending == 0


@pytest.mark.parametrize(
    ("failure", "name", "told"),
    [
        (ToolError("too loud"), "ToolError", "too loud"),
        (ZeroDivisionError("secret"), "InternalError", "This could not be answered."),
    ],
)
async def test_a_command_that_fails_is_answered_with_an_error(
    tmp_path: Path, failure: Exception, name: str, told: str
) -> None:
    plugin = Shouting()
    plugin.failure = failure
    async with chatting(tmp_path, plugin) as chat:
        [part] = (await chat.say("/fail")).parts
        assert part == ErrorPart(name, told, part.metadata if isinstance(part, ErrorPart) else None)
        assert (await chat.say("hi")).text == "You said: hi"


@pytest.mark.parametrize("text", ["/nothing", "/nothing at all", "/"])
async def test_an_unknown_command_is_reported(tmp_path: Path, text: str) -> None:
    async with chatting(tmp_path) as chat:
        answer = (await chat.say(text)).text
        name = text.split()[0]
        expected = "You said: /" if name == "/" else f"Unknown command: {name}. Type /help for a list."
        assert answer == expected


async def test_help_lists_every_command_once_by_name(tmp_path: Path) -> None:
    async with chatting(tmp_path, Shouting()) as chat:
        lines = (await chat.say("/help")).text.splitlines()
    names = [line.split("`")[1] for line in lines]
    known = (
        "agent compact fail fork help link model move new plan redo share shout status stop title undo "
        "unshare usage why"
    )
    assert [name[1:] for name in names] == known.split()
    assert "- `/shout` Say it louder" in lines
    assert "- `/help` Show the commands" in lines


async def test_stop_says_whether_there_was_something_to_stop(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/stop")).text == "Nothing is running."
        chat.model.then(Reply((Say("On and on"), Gate(asyncio.Event()))))
        await chat.accept("talk")
        await (await chat.watch()).until(lambda f: isinstance(f, TurnStart))
        assert (await chat.say("/stop")).text == "Stopped."
        assert (await chat.say("/stop")).text == "Nothing is running."
        chat.model.then(Reply((Cut(),)))
        await chat.say("fail")
        assert (await chat.say("/stop")).text == "Nothing is running."


async def test_new_lets_the_model_forget_and_the_reader_remember(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("my name is Ada")
        await chat.say("/new")
        await chat.say("hi")
        assert texts(chat.model.calls[-1].messages) == ["hi"]
        shown = texts((await chat.gateway.parts.sessions.find("s")).messages())
        assert shown[:2] == ["my name is Ada", "You said: my name is Ada"]
    async with chatting(tmp_path) as chat:
        await chat.say("still there?")
        assert texts(chat.model.calls[-1].messages) == ["hi", "You said: hi", "still there?"]


async def test_model_shows_and_changes_what_this_session_uses(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/model")).text.startswith("The model is `script/one`.")
        assert (await chat.say("/model script/two")).text == "This session now uses `script/two`."
        await chat.say("hi")
        await chat.say("hi", "other")
    assert [call.options.model for call in chat.model.calls] == ["two", "one"]
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/model")).text.startswith("The model is `script/two`;")


@pytest.mark.parametrize("name", ["scrpt/two", "two", "/"])
async def test_a_model_that_cannot_be_found_changes_nothing(tmp_path: Path, name: str) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say(f"/model {name}")).text.startswith("The model is unchanged: ")
        assert (await chat.say("/model")).text.startswith("The model is `script/one`.")


async def test_status_tells_of_this_session(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("Hello."),), tokens=Tokens(1234, 56)))
        await chat.say("hi")
        await chat.say("hi", "other")
        status = (await status_while_one_waits(chat)).text
    assert status == "- session `s`\n- agent `main`\n- model `script/one`\n- messages 2\n- waiting 1"


async def status_while_one_waits(chat: Chat) -> Message:
    """The status as it is told while another message waits behind the command."""
    asked, _ = await asyncio.gather(chat.accept("/status"), chat.accept("and then this"))
    return await chat.answer(asked)
