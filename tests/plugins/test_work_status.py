"""The plugin ``work_status``: the status line, its key, notes after long answers, and stopped answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, PluginError, Tool, ToolContext, tool_from
from gateway.contract.deltas import TextDelta
from gateway.session.frames import MessageFrame
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say, Tokens, Use, UseTogether
from gateway.testing.served import serving
from plugins.work_status import NOTE, WorkStatus


class Digger(Plugin):
    """A plugin with a tool that runs until the test ends it."""

    name = "digger"

    def __init__(self) -> None:
        self.begun, self.done = asyncio.Event(), asyncio.Event()
        self._tools = [tool_from(self.dig)]

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def dig(self) -> str:
        """Dig."""
        self.begun.set()
        await self.done.wait()
        return "a hole"


class Delegator(Plugin):
    """A plugin with a tool that starts a nested run."""

    name = "delegator"

    def __init__(self) -> None:
        self._tools = [tool_from(self.delegate)]

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def delegate(self, context: ToolContext) -> str:
        """Hand a task on."""
        return await context.run_nested("think about it")


class Clock:
    """A clock that a test advances."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def status(chat: Chat) -> list[str]:
    return [segment.text for segment in chat.gateway.registry.contributions.status.get("work_status", ())]


async def test_the_status_line_names_running_tools_and_a_key_hides_them(tmp_path: Path) -> None:
    digger = Digger()
    settings: dict[str, Any] = {"channels": {"websocket": {}}}
    plugins = {"plugins": {"work_status": {"shortcut": "ctrl+shift+w"}}}
    async with serving(tmp_path, digger, WorkStatus(), **settings, **plugins) as served:
        client = await served.connect(html=True)
        assert (await client.until("contributions"))["shortcuts"].count("ctrl+shift+w") == 1
        served.models.then(Reply((Use("dig"),), "tools"), Reply((Say("Done."),)))
        await client.say("dig", session="s")

        def shows(text: str, *, there: bool) -> Any:
            return lambda frame: frame["type"] == "contributions" and there == (text in str(frame["status"]))

        await client.until(shows("running dig", there=True))
        await client.send(type="key", key="ctrl+shift+w")
        await client.until(shows("running dig", there=False))
        await client.send(type="key", key="ctrl+shift+w")
        await client.until(shows("running dig", there=True))
        digger.done.set()
        await client.until(shows("running dig", there=False))
        # Changes of the status line are collected for a moment, so the answer may come first.
        if not any(frame["type"] == "complete" for frame in client.frames):
            await client.until("complete")
        await client.socket.close()


async def test_a_tool_that_runs_in_two_sessions_is_counted(tmp_path: Path) -> None:
    digger = Digger()
    async with chatting(tmp_path, digger, WorkStatus()) as chat:
        use = Reply((UseTogether((Use("dig"),)),), "tools")
        chat.model.then(use, use)
        first = await chat.accept("dig", "a")
        await digger.begun.wait()
        digger.begun.clear()
        second = await chat.accept("dig", "b")
        await digger.begun.wait()
        assert status(chat) == ["running 2 dig"]
        digger.done.set()
        await chat.answer(first, "a")
        await chat.answer(second, "b")
        assert status(chat) == []


async def test_a_long_answer_is_followed_by_a_note(tmp_path: Path) -> None:
    clock, gate = Clock(), Gate(asyncio.Event())
    settings = {"plugins": {"work_status": {"note_after_seconds": 30}}}
    async with chatting(tmp_path, WorkStatus(clock), **settings) as chat:
        await chat.say("quick")
        watcher = await chat.watch()
        chat.model.then(
            Reply((Use("calculator", '{"expression": "1"}'),), "tools", Tokens(1_000, 100)),
            Reply((Say("On "), gate, Say("it.")), tokens=Tokens(1_200, 34)),
        )
        accepted = await chat.accept("slow")
        await watcher.until(lambda frame: isinstance(frame, TextDelta) and frame.content == "On ")
        clock.seconds += 95
        gate.opened.set()
        await chat.answer(accepted)
        noted = await watcher.until(
            lambda frame: isinstance(frame, MessageFrame) and frame.message.custom_type == NOTE
        )
        notes = [f for f in watcher.frames if isinstance(f, MessageFrame) and f.message.custom_type == NOTE]
        await chat.say("and now?")
        assert "Answered in" not in str(chat.model.calls[-1].messages)
        live = chat.gateway.parts.sessions.get("s")
        assert live is not None
        assert not live.events.follows(live.id)
    assert noted.message.text == "Answered in 95 s with 2,334 tokens."
    assert noted.rendered == "`slow` *Answered in 95 s with 2,334 tokens.*"
    assert len(notes) == 1


async def test_a_nested_run_has_no_note_of_its_own(tmp_path: Path) -> None:
    settings = {"plugins": {"work_status": {"note_after_seconds": 0}}}
    async with chatting(tmp_path, Delegator(), WorkStatus(), **settings) as chat:
        chat.model.then(Reply((Use("delegate"),), "tools"), Reply((Say("nested"),)), Reply((Say("done"),)))
        await chat.say("go")
        kept = (await chat.gateway.parts.sessions.find("s")).messages()
    assert len([message for message in kept if message.custom_type == NOTE]) == 1


async def test_nested_agents_are_shown_while_they_run(tmp_path: Path) -> None:
    gate, plugin, begun = Gate(asyncio.Event()), WorkStatus(), asyncio.Event()
    async with chatting(tmp_path, Delegator(), plugin) as chat:
        chat.gateway.activity.subscribe_sub_agent(lambda step: begun.set() if "text" in step.kind else None)
        chat.model.then(Reply((Use("delegate"),), "tools"), Reply((Say("nested"), gate)))
        accepted = await chat.accept("go")
        await begun.wait()
        assert status(chat) == ["running agent sub, delegate"]
        figures = [(one.name, one.value, one.labels) for one in plugin.figures() if one.name == "nested_runs"]
        assert figures == [("nested_runs", 1, {"agent": "sub"})]
        gate.opened.set()
        await chat.answer(accepted)
        assert status(chat) == []


async def test_the_model_learns_that_its_answer_was_stopped(tmp_path: Path) -> None:
    clock = Clock()
    async with chatting(tmp_path, WorkStatus(clock)) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        await chat.accept("go")
        await watcher.until(lambda frame: isinstance(frame, TextDelta) and frame.content == "On ")
        clock.seconds += 12
        await chat.say("/stop")
        await chat.say("hm")
        sent = chat.model.calls[-1].messages
    assert [message.text for message in sent[-2:]] == [
        "hm",
        "(The user stopped the previous answer after 12 s.)",
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"note_after_seconds": -1}, "note_after_seconds = -1 must be greater than or equal to 0"),
        (
            {"shortcut": "w"},
            'plugins.work_status.shortcut = "w" is not a key with ctrl, alt or meta; write it in',
        ),
        ({"shortcut": "Alt+W"}, 'plugins.work_status.shortcut = "Alt+W" is not a key with ctrl, alt or meta'),
    ],
)
async def test_a_wrong_setting_stops_the_start(
    tmp_path: Path, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, WorkStatus(), plugins={"work_status": settings}):
            pass
    assert complaint in str(caught.value)
