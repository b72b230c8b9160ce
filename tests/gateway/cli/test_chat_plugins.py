"""Contributions of plugins in ``trunkline chat`` at a pseudo-terminal, against a real gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gateway import (
    DisplayHints,
    MentionCompletion,
    Message,
    Plugin,
    PluginContext,
    StatusSegment,
    TextPart,
    Tool,
    tool_from,
)
from gateway.cli.chat.link import Segment
from gateway.cli.chat.prompt import library_keys, mention, status_text
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import serving
from tests.gateway.cli.processes import Terminal

PROMPT = r">\x1b\[0m"


class Contributor(Plugin):
    """A plugin that keeps its context, for the test to use."""

    name = "contributor"
    ctx: PluginContext

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx

    def tools(self) -> Sequence[Tool]:
        async def patch(target: str) -> str:
            """Change a file."""
            return "@@ 1\n-old\n+new\n same"

        hints = DisplayHints(verb="patching", kind="diff", fields={"path": "target"})
        return [tool_from(patch, display=hints)]


class Chat:
    """The terminal; each method leaves the event loop to the gateway while it waits."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    async def expect(self, pattern: str) -> str:
        return await asyncio.to_thread(self.terminal.expect, pattern)

    async def expect_shown(self, text: str) -> None:
        await asyncio.to_thread(self.terminal.expect_shown, text)

    def type(self, text: str) -> None:
        self.terminal.type(text)


@asynccontextmanager
async def chatting(home: Path, url: str, session: str = "s") -> AsyncIterator[Chat]:
    terminal = Terminal(home, "chat", session, "--url", url)
    try:
        chat = Chat(terminal)
        await chat.expect(PROMPT)
        yield chat
    finally:
        terminal.close()


async def test_002_13_a_tool_is_shown_as_its_hints_say(tmp_path: Path) -> None:
    async with serving(tmp_path, Contributor()) as served, chatting(tmp_path, served.url) as chat:
        served.models.then(Reply((Use("patch", '{"target": "notes.md"}'),)), Reply((Say("Done."),)))
        chat.type("go\n")
        await chat.expect(rf"Done\.[\s\S]*{PROMPT}")
        shown = chat.terminal.screen
    assert any(line.startswith("✓ patching  notes.md") for line in chat.terminal.lines)
    assert re.search(r"\x1b\[31m-old", shown)
    assert re.search(r"\x1b\[32m\+new", shown)


async def test_002_23_a_renderer_writes_the_messages_of_its_type(tmp_path: Path) -> None:
    plugin = Contributor()
    async with serving(tmp_path, plugin) as served, chatting(tmp_path, served.url) as chat:
        plugin.ctx.register_message_renderer("weather", lambda message: f"It is **{message.text}**.")
        chat.type("Hi\n")
        await chat.expect(rf"tokens[\s\S]*{PROMPT}")
        bus = (await served.gateway.parts.sessions.find("s")).bus
        parts = (TextPart("raining"),)
        bus.append(Message(session_id="", role="assistant", parts=parts, custom_type="weather"))
        await chat.expect(r"It is \x1b\[1mraining\x1b\[0m\.")
    async with serving(tmp_path, plugin) as served:
        plugin.ctx.register_message_renderer("weather", lambda message: f"It is **{message.text}**.")
        async with chatting(tmp_path, served.url) as again:
            assert "It is raining." in again.terminal.lines


async def test_002_24_a_key_of_a_plugin_is_consumed(tmp_path: Path) -> None:
    plugin = Contributor()
    async with serving(tmp_path, plugin) as served:
        for key in ("ctrl+t", "alt+k", "x"):
            plugin.ctx.register_shortcut(key, lambda key=key: status(plugin, f"pressed {key}"))
        async with chatting(tmp_path, served.url) as chat:
            status(plugin, "ready")
            await chat.expect("ready")
            for typed, key in (("\x14", "ctrl+t"), ("\x1bk", "alt+k"), ("x", "x")):
                chat.type(typed)
                await chat.expect_shown(f"pressed {key}")
            chat.type("typed\n")
            await chat.expect(r"> typed\x1b")


async def test_002_25_a_mention_is_completed_and_nothing_hides_the_menu(tmp_path: Path) -> None:
    def people(partial: str) -> list[MentionCompletion]:
        names = [name for name in ("ada", "alan", "grace") if name.startswith(partial)]
        return [MentionCompletion(f"@{name}", name, f"{name} is a person") for name in names]

    plugin = Contributor()
    async with serving(tmp_path, plugin) as served:
        plugin.ctx.register_mention_provider("@", people)
        async with chatting(tmp_path, served.url) as chat:
            chat.type("ask @a")
            await chat.expect("alan is a person")
            chat.type("\x1b[B\x1b[B")
            await chat.expect_shown("> ask @alan")
            chat.type("about @zoe\n")
            await chat.expect(rf"tokens[\s\S]*{PROMPT}")
            stored = await served.gateway.parts.sessions.read("s")
    assert stored[0][1].text == "ask @alan about @zoe"


async def test_002_26_the_status_line_shows_what_plugins_push_and_disappears(tmp_path: Path) -> None:
    plugin = Contributor()
    async with serving(tmp_path, plugin) as served:
        plugin.ctx.set_status_line([StatusSegment("build failed", color="red")])
        async with chatting(tmp_path, served.url) as chat:
            await chat.expect(r"\x1b\[0;31mbuild failed")
            plugin.ctx.set_status_line([StatusSegment("build done", dim=True), StatusSegment("2 open")])
            await chat.expect_shown("build done  2 open")
            plugin.ctx.set_status_line([])
            chat.type("Hi\n")
            await chat.expect(rf"tokens[\s\S]*{PROMPT}")
            assert not any("2 open" in line for line in chat.terminal.lines[-3:])


def status(plugin: Contributor, text: str) -> None:
    plugin.ctx.set_status_line([StatusSegment(text)])


def test_keys_of_plugins_have_the_names_of_the_library() -> None:
    names = {
        "ctrl+t": ("c-t",),
        "alt+r": ("escape", "r"),
        "shift+tab": ("s-tab",),
        "f1": ("f1",),
        "space": (" ",),
    }
    assert {name: library_keys(name) for name in names} == names


def test_a_mention_begins_a_word_and_has_no_blanks() -> None:
    assert [mention(text, "@") for text in ("@", "hi @ad", "a@b", "@a b", "hi")] == [
        "",
        "ad",
        None,
        None,
        None,
    ]
    assert mention("/model gro", "/model ") == "gro"


def test_a_status_line_cannot_control_the_terminal() -> None:
    assert status_text([Segment("a\x1b[2J\nb", color="blue")]) == [("", "a[2J b")]
