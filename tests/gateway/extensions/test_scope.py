"""What belongs to a plugin ends with it: its tasks, of which each fails alone, and all that it registers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    MentionCompletion,
    Message,
    Plugin,
    PluginContext,
    SlashCommand,
    StatusSegment,
)
from gateway.api import ApiCall, ApiRoute
from gateway.contract.errors import InvalidStateError
from gateway.contract.questions import Answer
from gateway.contract.services import TaskService
from gateway.events import TurnFinished
from gateway.extensions.deadlines import is_limited
from gateway.extensions.registry import AgentSources
from gateway.testing.chat import Chat, ScriptedModel, chatting
from gateway.testing.letterbox import Letterbox


class Worker(Plugin):
    """A plugin that keeps its task service."""

    name = "worker"

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.tasks is not None
        self.tasks: TaskService = ctx.tasks
        self.tasks.create_task(self.wait("of activate"))

    async def deactivate(self) -> None:
        self.notes.append("deactivated")

    async def wait(self, name: str) -> None:
        """Wait until cancelled, without the time limit of the hook that started it."""
        assert not is_limited()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.notes.append(f"{name} ended")


async def test_004_t02_tasks_end_before_their_plugin(tmp_path: Path) -> None:
    worker = Worker()
    async with chatting(tmp_path, worker) as chat:
        worker.tasks.create_task(worker.wait("second"))
        await chat.say("hi")
        assert worker.notes == []
    assert sorted(worker.notes[:2]) == ["of activate ended", "second ended"]
    assert worker.notes[2:] == ["deactivated"]


async def test_a_removed_plugin_has_no_tasks(tmp_path: Path) -> None:
    worker = Worker()
    async with chatting(tmp_path, worker) as chat:
        await asyncio.sleep(0)
        await chat.gateway.registry.unregister("worker")
        assert worker.notes == ["of activate ended", "deactivated"]
        with pytest.raises(
            InvalidStateError, match="plugin 'worker' has ended, and cannot start the task 'late'"
        ):
            worker.tasks.create_task(worker.wait("late"), name="late")


@pytest.mark.parametrize("failure", [ValueError("broken"), SystemExit(3), asyncio.CancelledError()])
async def test_a_task_that_fails_is_logged_and_fails_alone(
    tmp_path: Path, failure: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> None:
        raise failure

    worker = Worker()
    async with chatting(tmp_path, worker) as chat:
        await asyncio.wait([worker.tasks.create_task(fail(), name="failing")])
        assert (await chat.say("hi")).text == "You said: hi"
        assert worker.notes == []
    logged = capsys.readouterr().out
    assert "a task of a plugin failed" in logged
    assert "plugin=worker" in logged
    assert "task=failing" in logged


async def test_a_task_that_ignores_its_end_is_cancelled_again(tmp_path: Path) -> None:
    cancelled: list[int] = []

    async def stubborn() -> None:
        while len(cancelled) < 2:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(1)

    worker = Worker()
    async with chatting(tmp_path, worker):
        worker.tasks.create_task(stubborn())
        await asyncio.sleep(0)
    assert cancelled == [1, 1]


async def test_the_tasks_of_a_plugin_that_fails_to_activate_end(tmp_path: Path) -> None:
    class Failing(Worker):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            await asyncio.sleep(0)
            raise ValueError("no")

    worker = Failing()
    with pytest.raises(Exception, match="no"):
        async with chatting(tmp_path, worker):
            pass
    assert worker.notes == ["of activate ended"]


async def test_only_a_coroutine_is_a_task(tmp_path: Path) -> None:
    worker = Worker()
    async with chatting(tmp_path, worker):
        with pytest.raises(TypeError, match="must be a coroutine"):
            worker.tasks.create_task(sys.exit)  # type: ignore[arg-type]


class Everything(Plugin):
    """A plugin that registers something of every kind, and keeps what it hears."""

    name = "everything"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[str] = []
        self.provider = ScriptedModel()
        self.provider.id = "own"
        self.published = AgentSources()

    async def activate(self, ctx: Any) -> None:
        self.ctx = ctx
        ctx.set_status_line([StatusSegment("first")])
        ctx.set_status_line([StatusSegment("second")])
        ctx.register_message_renderer("card", lambda message: "a card")
        ctx.register_shortcut("f5", lambda: None)
        ctx.register_mention_provider("%", lambda partial: [MentionCompletion("one")])
        ctx.providers.register(self.provider)
        ctx.providers.add_factory("made", self.make)
        ctx.channels.register(Letterbox())
        ctx.agents.register_source(self.folder)
        ctx.set_agents_registry(self.published)
        ctx.questions.on_answer(self.take)
        ctx.events.subscribe(TurnFinished, lambda event: self.heard.append("turn"))
        ctx.events.subscribe_all(lambda event: self.heard.append("all"))
        ctx.events.once(TurnFinished, lambda event: self.heard.append("once"))
        ctx.activity.subscribe(lambda activity: self.heard.append("activity"))
        ctx.activity.subscribe_sub_agent(lambda event: self.heard.append("step"))

    def make(self, config: Any) -> ScriptedModel:
        self.made = ScriptedModel()
        self.made.id = "made"
        return self.made

    async def take(self, answer: Answer) -> None:
        """Take an answer."""

    async def listen(self) -> None:
        """Listen to the session of the test."""
        (await self.ctx.sessions.find("s")).subscribe(lambda event: self.heard.append("session"))

    def commands(self) -> Sequence[SlashCommand]:
        async def run(rest: str, ctx: Any) -> str:
            return "ran"

        return [SlashCommand("every", "Everything", run, choices=lambda typed: [MentionCompletion("x")])]

    def routes(self) -> Sequence[ApiRoute]:
        return [ApiRoute("GET", "/all", "All", self.route)]

    async def route(self, call: ApiCall[None, None, None]) -> None:
        """Answer nothing."""


OFFERS: dict[str, Callable[[Chat], object]] = {
    "status line": lambda chat: chat.host.status_line(),
    "renderer": lambda chat: chat.gateway.registry.get_renderer("card"),
    "shortcut": lambda chat: "f5" in chat.host.shortcuts(),
    "mention provider": lambda chat: "%" in chat.host.triggers(),
    "choices of a command": lambda chat: "/every " in chat.host.triggers(),
    "command": lambda chat: "every" in [command.name for command in chat.host.commands()],
    "route": lambda chat: chat.gateway.registry.routes.get("everything"),
    "provider": lambda chat: chat.gateway.providers.get("own"),
    "provider factory": lambda chat: "made" in chat.gateway.providers.factories(),
    "created provider": lambda chat: chat.gateway.providers.get("made"),
    "channel": lambda chat: chat.gateway.channels.get("letters"),
    "handler of answers": lambda chat: chat.gateway.parts.questions.handler_of("plugin:everything"),
}
"""What tells that something of each kind is registered."""


async def test_what_a_plugin_registers_ends_with_it(tmp_path: Path) -> None:
    plugin, later = Everything(tmp_path), Everything(tmp_path)
    later.name = "later"
    async with chatting(tmp_path, plugin) as chat:
        registry, made = chat.gateway.registry, await chat.gateway.providers.ready("made")
        await chat.say("hi")
        await plugin.listen()
        plugin.heard.clear()
        await chat.say("hi")
        assert {"turn", "all", "activity", "session"} <= {*plugin.heard}
        assert all(found(chat) for found in OFFERS.values())

        await registry.unregister("everything")
        plugin.heard.clear()
        await chat.say("hi")
        assert plugin.heard == []
        assert {name: found(chat) or None for name, found in OFFERS.items()} == dict.fromkeys(OFFERS)
        # Every name is free again, and neither the folder nor the published registry of agents is left.
        await registry.register(later)
        assert later.ctx.agents is not None
        assert later.ctx.agents.list() == (tmp_path,)
        assert not plugin.made.closed, "a running turn could still use it"
    assert plugin.made.closed
    assert plugin.provider.closed
    assert made is plugin.made


async def test_a_plugin_that_has_ended_registers_nothing_more(tmp_path: Path) -> None:
    plugin = Everything(tmp_path)
    async with chatting(tmp_path, plugin) as chat:
        await chat.gateway.registry.unregister("everything")
        plugin.heard.clear()
        assert plugin.ctx.tasks is not None
        with pytest.raises(InvalidStateError):
            plugin.ctx.tasks.create_task(plugin.listen())
        await Everything.activate(plugin, plugin.ctx)
        await chat.say("hi")
        await plugin.listen()
        await chat.say("hi")
        assert plugin.heard == []
        assert {name: found(chat) or None for name, found in OFFERS.items()} == dict.fromkeys(OFFERS)


async def test_what_a_plugin_takes_back_itself_is_not_removed_again(tmp_path: Path) -> None:
    class Twice(Plugin):
        def __init__(self, name: str) -> None:
            self.name = name

        async def activate(self, ctx: PluginContext) -> None:
            assert ctx.channels is not None
            self.remove = ctx.channels.register(Letterbox())

    first, second = Twice("first"), Twice("second")
    async with chatting(tmp_path, first) as chat:
        first.remove()
        await chat.gateway.registry.register(second)
        first.remove()
        await chat.gateway.registry.unregister("first")
        assert chat.gateway.channels.get("letters") is not None


async def test_what_a_failed_activation_registered_is_removed(tmp_path: Path) -> None:
    class Failing(Everything):
        async def activate(self, ctx: Any) -> None:
            await super().activate(ctx)
            raise ValueError("no")

    async with chatting(tmp_path) as chat:
        with pytest.raises(Exception, match="no"):
            await chat.gateway.registry.register(Failing(tmp_path))
        assert {name: found(chat) or None for name, found in OFFERS.items()} == dict.fromkeys(OFFERS)
        card = Message(session_id="s", role="assistant", custom_type="card")
        assert chat.gateway.registry.render(card) is None
