"""A turn keeps the plugins that it started with; a plugin that was replaced ends after its last turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    MentionCompletion,
    Plugin,
    PluginContext,
    PluginError,
    SlashCommand,
    Tool,
    ToolContext,
    tool_from,
)
from gateway.api import ApiCall, ApiRoute
from gateway.contract.deltas import ToolResultEnd
from gateway.events import TurnStarted
from gateway.extensions.generation import Lease
from gateway.extensions.registry import PluginRegistry
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, ScriptedModel, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.letterbox import Letterbox
from tests.gateway.extensions.test_registry import Noted, context_for
from tests.virtual_time import VirtualTimeLoop


def names(registry: PluginRegistry) -> list[str]:
    """The names of the plugins, in order."""
    return [plugin.name for plugin in registry.list()]


@asynccontextmanager
async def registry_of(*plugins: Plugin) -> AsyncGenerator[PluginRegistry]:
    """A registry whose plugins may have tasks, as in a running gateway."""
    registry = PluginRegistry(context_for)
    async with asyncio.TaskGroup() as registry.task_group:
        for plugin in plugins:
            await registry.register(plugin)
        yield registry
        await registry.shutdown()


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test whose minutes pass at once."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(test())  # type: ignore[arg-type]


async def test_a_replaced_plugin_keeps_its_place_and_ends() -> None:
    notes: list[str] = []
    old, new = Noted("b", notes), Noted("b", notes)
    async with registry_of(Noted("a"), old, Noted("c")) as registry:
        before = registry.current
        await registry.replace("b", new)
        assert names(registry) == ["a", "b", "c"]
        assert registry.get("b") is new
        assert [one.plugin for one in before.active][1] is old, "a generation never changes"
        await asyncio.sleep(0)
        assert notes == ["+b", "+b", "-b"]
    assert notes == ["+b", "+b", "-b", "-b"]


async def test_a_plugin_that_cannot_be_activated_replaces_nothing() -> None:
    class Failing(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            ctx.register_shortcut("f1", lambda: None)
            raise RuntimeError("no")

    old = Noted("a")
    async with registry_of(old) as registry:
        before = registry.current
        with pytest.raises(PluginError, match="plugin 'a' failed to activate: RuntimeError: no"):
            await registry.replace("a", Failing("a"))
        with pytest.raises(PluginError, match="'x' is not registered"):
            await registry.replace("x", Noted("x"))
        with pytest.raises(PluginError, match="'b' cannot replace 'a'"):
            await registry.replace("a", Noted("b"))
        assert registry.current is before
        assert registry.get_shortcuts() == ()
        assert old.notes == ["+a"]


async def test_only_the_first_of_two_replacements_at_once_counts() -> None:
    class Slow(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            await go.wait()

    go, notes = asyncio.Event(), list[str]()
    slow, fast = Slow("a", notes), Noted("a", notes)
    async with registry_of(Noted("a")) as registry:
        late = asyncio.create_task(registry.replace("a", slow))
        await asyncio.sleep(0)
        await registry.replace("a", fast)
        go.set()
        with pytest.raises(PluginError, match="'a' cannot be replaced: it was changed in the meantime"):
            await late
        assert registry.get("a") is fast
        assert notes == ["+a", "+a", "-a"]


async def test_contributions_are_exchanged_in_their_place_once_the_new_plugin_is_active() -> None:
    class Card(Noted):
        def __init__(self, name: str, word: str) -> None:
            super().__init__(name)
            self.word = word

        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            ctx.register_message_renderer("card", lambda message: self.word)
            seen.append(registry.get_renderer("card"))
            if self.word == "old":
                ctx.register_shortcut("f1", lambda: None)

    seen: list[Any] = []
    registry = PluginRegistry(context_for)
    for plugin in (Card("a", "old"), Card("b", "other")):
        await registry.register(plugin)
    await registry.replace("a", Card("a", "new"))
    assert seen[2] is seen[0], "until it is active, the old plugin's is used"
    renderer: Any = registry.get_renderer("card")
    assert renderer(None) == "new", "it is still before that of b"
    assert registry.get_shortcuts() == ()


class Guarded(Plugin):
    """A plugin with every kind of thing that a turn uses. ``word`` tells one version from another."""

    name = "guarded"

    def __init__(self, word: str) -> None:
        self.word = word
        self.calls: list[str] = []
        self.heard: list[str] = []
        self.ended = asyncio.Event()
        self.go = asyncio.Event()
        self.system_prompt = f"prompt {word}"

    async def activate(self, ctx: Any) -> None:
        self.ctx = ctx
        ctx.channels.register(Letterbox())
        ctx.providers.add_factory("made", self.make)
        ctx.questions.on_answer(self.take)
        ctx.events.subscribe(TurnStarted, lambda event: self.heard.append(event.session))
        ctx.tasks.create_task(self.wait())

    async def deactivate(self) -> None:
        self.ended.set()

    async def wait(self) -> None:
        """Wait until the plugin ends."""
        await asyncio.get_running_loop().create_future()

    async def take(self, answer: Any) -> None:
        """Take an answer."""

    def make(self, config: Any) -> ScriptedModel:
        made = ScriptedModel()
        made.id, made.name = "made", self.word
        return made

    async def transform_user_input(self, text: str, ctx: Any) -> None:
        self.calls.append("input")

    async def before_llm_call(self, messages: Any, options: Any, ctx: Any) -> None:
        self.calls.append("model")

    async def after_agent_run(self, reason: Any, ctx: Any) -> None:
        self.calls.append("end")

    async def look(self, context: ToolContext) -> str:
        """Look."""
        assert not self.ended.is_set()
        return self.word

    async def ask(self, context: ToolContext) -> str:
        """Ask the user."""
        assert context.ask is not None
        answer = await context.ask("Go on?")
        assert not self.ended.is_set(), "a call that runs keeps the plugin alive"
        return f"{self.word} {answer.value if answer else None}"

    def tools(self) -> Sequence[Tool]:
        return [tool_from(self.look), tool_from(self.ask)]

    def commands(self) -> Sequence[SlashCommand]:
        return [SlashCommand("word", self.word, self._word, choices=self._choices)]

    async def _word(self, rest: str, ctx: Any) -> str:
        await self.go.wait()
        return self.word

    def _choices(self, typed: str) -> list[MentionCompletion]:
        return [MentionCompletion(self.word)]

    def routes(self) -> Sequence[ApiRoute]:
        return [ApiRoute("GET", f"/{self.word}", self.word, self._route)]

    async def _route(self, call: ApiCall[None, None, None]) -> None:
        """Answer nothing."""


async def begun(chat: Chat, gate: asyncio.Event) -> asyncio.Task[Any]:
    """Begin a turn whose model waits for a gate at its first call."""
    chat.model.then(Reply((Gate(gate), Use("look")), "tools"))
    calls = len(chat.model.calls)
    task = asyncio.create_task(chat.say("hi"))
    while len(chat.model.calls) == calls:
        await asyncio.sleep(0.001)
    return task


async def test_a_turn_ends_with_the_plugins_that_it_began_with(tmp_path: Path) -> None:
    old, new = Guarded("old"), Guarded("new")
    async with chatting(tmp_path, old) as chat:
        registry, gate = chat.gateway.registry, asyncio.Event()
        turn = await begun(chat, gate)
        await registry.replace("guarded", new)
        # What is outside of turns is exchanged at once.
        assert [route.url for route in registry.routes["guarded"]] == ["/api/plugins/guarded/new"]
        assert [one.description for one in chat.host.commands() if one.name == "word"] == ["new"]
        assert [one.value for one in await chat.host.complete("", "/word ")] == ["/word new"]
        assert (await chat.gateway.providers.ready("made")).name == "new"
        assert (await chat.say("hello", session="other")).text == "You said: hello"
        assert (old.heard, new.heard) == (["s"], ["other"]), "each event is delivered once"
        assert not old.ended.is_set()
        chat.model.then(Reply((Say("done"),)))
        gate.set()
        answer = await turn
        assert [getattr(part, "output", "") for part in answer.parts][1] == "old"
        assert answer.text == "done"
        await old.ended.wait()
        assert old.calls == ["input", "model", "model", "end"]
        assert new.calls == ["input", "model", "end"]
        await chat.say("hi")
        assert old.calls[4:] == []
        assert not new.ended.is_set()


async def test_a_nested_run_uses_the_plugins_of_its_turn(tmp_path: Path) -> None:
    old, new = Guarded("old"), Guarded("new")
    async with chatting(tmp_path, old) as chat:
        gate = asyncio.Event()
        chat.model.then(
            Reply(
                (Gate(gate), Use("task", '{"description": "look", "prompt": "look", "agent": "general"}')),
                "tools",
            ),
            Reply((Use("look"),), "tools"),
            Reply((Say("looked"),)),
            Reply((Say("done"),)),
        )
        turn = asyncio.create_task(chat.say("hi"))
        while not chat.model.calls:
            await asyncio.sleep(0.001)
        await chat.gateway.registry.replace("guarded", new)
        gate.set()
        assert (await turn).text == "done"
        assert old.calls.count("model") == 4
        assert new.calls == []
        assert "prompt old" in chat.model.calls[1].options.system_prompt


async def test_a_command_that_runs_is_not_cut_off(tmp_path: Path) -> None:
    old, new = Guarded("old"), Guarded("new")
    new.go.set()
    async with chatting(tmp_path, old) as chat:
        reply = asyncio.create_task(chat.say("/word"))
        while not old.calls:
            await asyncio.sleep(0.001)
        await chat.gateway.registry.replace("guarded", new)
        assert (await chat.say("/word", session="other")).text == "new"
        assert not old.ended.is_set()
        old.go.set()
        assert (await reply).text == "old"
        await old.ended.wait()


@pytest.mark.parametrize("question", ["of the tool", "about the tool"])
async def test_a_turn_that_waits_for_a_person_is_known_to_wait(tmp_path: Path, question: str) -> None:
    old, new = Guarded("old"), Guarded("new")
    tool, rule = ("ask", "allow") if question == "of the tool" else ("look", "ask")
    async with chatting(tmp_path, old, permissions={"*": rule}) as chat:
        chat.model.then(Reply((Use(tool),), "tools"), Reply((Say("done"),)))
        await chat.accept("hi")
        watcher = await chat.watch()
        asked = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        turn = chat.gateway.parts.sessions.get_loaded("s").turn
        while not turn.lease.only_waits:
            await asyncio.sleep(0.001)
        await chat.gateway.registry.replace("guarded", new)
        await chat.host.settle(asked.approval_id, "yes" if rule == "allow" else "once")
        result = await watcher.until(lambda frame: isinstance(frame, ToolResultEnd))
        assert not turn.lease.only_waits
        assert not result.is_error
        await old.ended.wait()
    assert old.calls == ["input", "model", "model", "end"]


async def test_a_replaced_channel_stops_before_the_new_one_runs(tmp_path: Path) -> None:
    class Posting(Plugin):
        name = "posting"

        def __init__(self) -> None:
            self.box = Letterbox()

        async def activate(self, ctx: PluginContext) -> None:
            assert ctx.channels is not None
            ctx.channels.register(self.box)

    old, new = Posting(), Posting()
    async with chatting(tmp_path, old) as chat:
        await old.box.open.wait()
        await chat.gateway.registry.replace("posting", new)
        await new.box.open.wait()
        assert not old.box.open.is_set()
        assert chat.gateway.channels.get("letters") is new.box
        assert chat.gateway.health()["letters"] == (True, "")
        await chat.gateway.registry.unregister("posting")
        while new.box.open.is_set():
            await asyncio.sleep(0.001)
        assert "letters" not in chat.gateway.health()


async def test_a_plugin_that_takes_what_another_one_has_replaces_nothing(tmp_path: Path) -> None:
    class Greedy(Guarded):
        async def activate(self, ctx: Any) -> None:
            await super().activate(ctx)
            ctx.providers.register(ScriptedModel())

    old, greedy = Guarded("old"), Greedy("greedy")
    async with chatting(tmp_path, old) as chat:
        registry = chat.gateway.registry
        with pytest.raises(PluginError, match="cannot be replaced: provider 'script' is already registered"):
            await registry.replace("guarded", greedy)
        assert registry.get("guarded") is old
        assert greedy.ended.is_set()
        assert (await chat.gateway.providers.ready("made")).name == "old"
        await chat.say("hi")
        assert (old.heard, greedy.heard) == (["s"], [])
        assert chat.gateway.channels.get("letters") is not None


async def test_turns_do_without_a_plugin_that_is_removed(tmp_path: Path) -> None:
    old = Guarded("old")
    async with chatting(tmp_path, old) as chat:
        gate = asyncio.Event()
        turn = await begun(chat, gate)
        await chat.gateway.registry.unregister("guarded")
        assert old.ended.is_set()
        chat.model.then(Reply((Say("done"),)))
        gate.set()
        assert (await turn).text == "done"
        assert old.calls == ["input", "model"]


async def test_a_stopping_gateway_ends_replaced_plugins_first(tmp_path: Path) -> None:
    old, new = Guarded("old"), Guarded("new")
    async with chatting(tmp_path, old) as chat:
        with chat.gateway.registry.lease():
            await chat.gateway.registry.replace("guarded", new)
            await asyncio.sleep(0)
            assert not old.ended.is_set()
    assert old.ended.is_set()
    assert new.ended.is_set()


def test_after_ten_minutes_every_turn_uses_the_new_plugin() -> None:
    async def test() -> None:
        old, new = Noted("a"), Noted("a")
        async with registry_of(old) as registry:
            with registry.lease() as lease, registry.lease() as pinned, pinned.pinned(), pinned.waiting():
                await registry.replace("a", new)
                await asyncio.sleep(599)
                assert held(lease, pinned) == [old, old]
                assert old.notes == ["+a"]
                await asyncio.sleep(2)
                assert held(lease, pinned) == [new, new]
                assert old.notes == ["+a", "-a"]

    in_virtual_time(test)


def test_after_a_minute_turns_that_wait_for_a_person_use_the_new_plugin() -> None:
    async def test() -> None:
        old, new = Noted("a"), Noted("a")
        async with registry_of(old) as registry:
            with registry.lease() as waits, registry.lease() as later:
                with waits.waiting():
                    await registry.replace("a", new)
                    await asyncio.sleep(59)
                    assert held(waits, later) == [old, old]
                    await asyncio.sleep(2)
                    assert held(waits, later) == [new, old]
                assert old.notes == ["+a"], "the other turn does not wait"
                with later.waiting():
                    await asyncio.sleep(0.1)
                    assert held(later) == [new]
                    assert old.notes == ["+a", "-a"]

    in_virtual_time(test)


def test_a_turn_with_a_run_that_works_does_not_only_wait() -> None:
    lease = Lease(PluginRegistry(context_for).current, lambda: None)
    assert not lease.only_waits
    with lease.waiting():
        assert lease.only_waits
        lease.branches = 2
        assert not lease.only_waits
        with lease.waiting():
            assert lease.only_waits


def held(*leases: Lease) -> list[Plugin]:
    """The plugin that each turn uses."""
    return [lease.generation.active[0].plugin for lease in leases]


def test_a_call_that_waits_for_a_person_keeps_its_plugin_for_ten_minutes() -> None:
    async def test() -> None:
        old, new, go = Noted("a"), Noted("a"), asyncio.Event()
        async with registry_of(old) as registry:
            with registry.lease() as lease, lease.waiting():
                limit = lease.generation.active[0].limit("test", 300_000)
                call = asyncio.create_task(limit.call(go.wait))
                await asyncio.sleep(0)
                await registry.replace("a", new)
                await asyncio.sleep(100)
                assert held(lease) == [new]
                assert old.notes == ["+a"]
                go.set()
                await call
                await asyncio.sleep(0.1)
                assert old.notes == ["+a", "-a"]

    in_virtual_time(test)
