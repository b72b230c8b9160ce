"""The composition root: what is registered in which order, what the handle holds, how it starts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    InvalidStateError,
    Message,
    Plugin,
    PluginContext,
    PluginError,
    SettingsError,
    Tool,
    tool_from,
)
from gateway.app import Gateway
from gateway.backends import ProviderRegistry
from gateway.bus import ActivityBus
from gateway.registry import ChannelRegistry, PluginRegistry
from gateway.session import Sessions
from gateway.settings import Settings, load_settings
from gateway.testing.chat import chatting, written
from gateway.testing.letterbox import Letterbox
from gateway.testing.script import Gate, Reply, Say, Use


class Noted(Plugin):
    """A plugin that keeps its context, and says how it began and ended."""

    def __init__(self, name: str, notes: list[str] | None = None) -> None:
        self.name = name
        self.notes = [] if notes is None else notes

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx
        self.notes.append(f"+{self.name}")

    async def deactivate(self) -> None:
        self.notes.append(f"-{self.name}")

    async def transform_system_prompt(self, prompt: str, ctx: Any) -> str:
        return f"{prompt} {self.name}".strip()


class Bringing(Plugin):
    """Brings channels of its own."""

    name = "bringing"

    def __init__(self, *channels: Letterbox) -> None:
        self._channels = channels

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        for channel in self._channels:
            ctx.channels.register(channel)


def settings_for(data_dir: Path, **more: Any) -> Settings:
    """Settings without channels and with the demo."""
    return Settings.model_validate({"data_dir": data_dir, "model": "demo/demo", "channels": {}, **more})


def names(gateway: Gateway) -> list[str]:
    """The plugins beyond the built-in ones."""
    return [plugin.name for plugin in gateway.registry.list() if isinstance(plugin, Noted)]


async def test_002_29_a_plugin_may_ask_for_the_end_and_the_answer_still_comes(tmp_path: Path) -> None:
    plugin = Noted("off")

    async def turn_off() -> str:
        """End the gateway."""
        assert plugin.ctx.shutdown is not None
        plugin.ctx.shutdown(3)
        plugin.ctx.shutdown(0)
        return "as you wish"

    class Switch(Plugin):
        name = "switch"

        def tools(self) -> Sequence[Tool]:
            return [tool_from(turn_off)]

    async with chatting(tmp_path, plugin, Switch()) as chat:
        chat.model.then(Reply((Use("turn_off"),), "tools"), Reply((Say("Good night."),)))
        answer = await chat.say("good night")
        assert (chat.gateway.stop.is_set(), chat.gateway.exit_code) == (True, 3)
    assert answer.text == "Good night."


async def test_002_32_channels_of_plugins_are_all_started_and_answered_on(tmp_path: Path) -> None:
    boxes = [Letterbox("letters"), Letterbox("pigeons")]
    async with chatting(tmp_path, Bringing(*boxes)) as chat:
        assert [channel.id for channel in chat.gateway.channels.list()] == ["letters", "pigeons"]
        for box in boxes:
            await box.write(written(f"hello {box.id}", session=box.id, channel=box.id))
        placed = [(await box.until(1))[0] for box in boxes]
        assert [out.message.text for out in placed] == ["You said: hello letters", "You said: hello pigeons"]
        assert chat.gateway.health()["pigeons"] == (True, "")
    assert not any(box.open.is_set() for box in boxes), "they are stopped again"


async def test_002_33_a_channel_is_told_how_the_answer_is_wanted(tmp_path: Path) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Bringing(box)):
        await box.write(written("hello", channel=box.id, response_mode="voice"))
        [placed] = await box.until(1)
        assert (placed.response_mode, placed.address.channel) == ("voice", box.id)


async def test_002_39_a_settings_object_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text('system_prompt = "from the file"\nmax_tokens = 7\n')
    settings = load_settings(flags={"system_prompt": "given"}, environ={}, cwd=tmp_path)
    assert (settings.system_prompt, settings.max_tokens) == ("given", 7)
    assert Gateway(Settings(system_prompt="given")).settings == Settings(system_prompt="given")


async def test_002_39_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    assert load_settings(environ={}, cwd=tmp_path) == Settings()


def test_002_39_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.json"
    file.write_text("{")
    with pytest.raises(SettingsError, match=r"trunkline\.json"):
        load_settings(file, environ={}, cwd=tmp_path)


async def test_002_40_the_resolver_finds_plugins_by_name_and_may_pass_one_over(tmp_path: Path) -> None:
    found = {"first": Noted("first"), "second": Noted("second")}
    settings = settings_for(tmp_path, plugins={"enabled": ("second", "nothing", "first")})
    gateway = Gateway(settings, resolve_plugin=found.get)
    async with gateway.running():
        assert names(gateway) == ["second", "first"]


async def test_002_40_a_plugin_may_be_listed_with_its_settings(tmp_path: Path) -> None:
    listed = '["a", {"name": "b.py", "config": {"hour": 9, "at": {"x": 1}}}, {"name": "c"}]'
    (tmp_path / "own.json").write_text(f'{{"plugins": {{"enabled": {listed}}}}}')
    plugins = {"a": Noted("a"), "b.py": Noted("b"), "c": Noted("c")}
    flags = {"data_dir": str(tmp_path), "model": "demo/demo"}
    settings = load_settings(tmp_path / "own.json", flags=flags, environ={}, cwd=tmp_path)
    gateway = Gateway(settings, resolve_plugin=plugins.get)
    async with gateway.running():
        assert names(gateway) == ["a", "b", "c"]
        assert [plugin.ctx.config for plugin in plugins.values()] == [{}, {"hour": 9, "at": {"x": 1}}, {}]


@pytest.mark.parametrize("entry", ['{"nam": "b"}', '{"name": 5}', '{"name": "b", "config": 3}', "{}"])
def test_002_40_a_wrong_entry_is_told_and_not_shown(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(f'{{"plugins": {{"enabled": [{entry}]}}}}')
    with pytest.raises(SettingsError, match=r"own\.json:1: plugins\.enabled lists names of plugins"):
        load_settings(file, environ={}, cwd=tmp_path)


async def test_002_40_without_a_resolver_configured_plugins_are_ignored(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, plugins={"enabled": ("there_is_no_such_plugin",)})
    gateway = Gateway(settings, resolve_plugin=None, plugins=[Noted("own")])
    async with gateway.running():
        assert names(gateway) == ["own"]


async def test_002_41_configured_plugins_come_before_the_callers(tmp_path: Path) -> None:
    notes: list[str] = []
    found = {name: Noted(name, notes) for name in ("a", "b")}
    settings = settings_for(tmp_path, plugins={"enabled": ("a", "b")})
    gateway = Gateway(settings, resolve_plugin=found.get, plugins=[Noted("y", notes), Noted("z", notes)])
    async with gateway.running():
        hooks = gateway.registry.get_hooks()
        assert await hooks.transform_system_prompt("", None) == "a b y z"  # type: ignore[arg-type]
    assert notes == ["+a", "+b", "+y", "+z", "-z", "-y", "-b", "-a"]


async def test_a_configured_plugin_that_fails_is_left_out_and_the_callers_is_an_error(tmp_path: Path) -> None:
    class Broken(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            raise ValueError("no")

    settings = settings_for(tmp_path, plugins={"enabled": ("broken", "well")})
    found = {"broken": Broken("broken"), "well": Noted("well")}
    gateway = Gateway(settings, resolve_plugin=found.get)
    async with gateway.running():
        assert names(gateway) == ["well"]
    with pytest.raises(PluginError, match="broken"):
        async with Gateway(settings_for(tmp_path), plugins=[Broken("broken")]).running():
            pytest.fail("it must not start")


async def test_a_disabled_plugin_is_left_out_even_a_built_in_one(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, plugins={"enabled": ("a",), "disabled": ("a", "tools")})
    gateway = Gateway(settings, resolve_plugin={"a": Noted("a")}.get)
    async with gateway.running():
        assert [plugin.name for plugin in gateway.registry.list()] == [
            "commands",
            "choosing",
            "access",
            "spending",
            "providers",
        ]


async def test_002_42_sessions_are_not_there_before_the_start(tmp_path: Path) -> None:
    gateway = Gateway(settings_for(tmp_path))
    with pytest.raises(InvalidStateError, match="not yet initialised"):
        _ = gateway.sessions
    async with gateway.running():
        assert await gateway.sessions.list() == []


async def test_002_42_a_plugin_that_submits_while_it_is_activated_is_told(tmp_path: Path) -> None:
    class Early(Noted):
        answer: Message | None = None

        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            assert ctx.submit is not None
            with pytest.raises(InvalidStateError, match="not yet initialised"):
                await ctx.submit(written("too early"))

    plugin = Early("early")
    async with chatting(tmp_path, plugin):
        assert plugin.ctx.submit is not None
        answer = await plugin.ctx.submit(written("now"))
        assert answer is not None
        assert answer.text == "You said: now"


async def test_002_43_the_handle_has_five_registries_and_shutdown(tmp_path: Path) -> None:
    plugin = Noted("looking")
    gateway = Gateway(settings_for(tmp_path), plugins=[plugin])
    async with gateway.running():
        assert isinstance(gateway.registry, PluginRegistry)
        assert isinstance(gateway.sessions, Sessions)
        assert isinstance(gateway.channels, ChannelRegistry)
        assert isinstance(gateway.activity, ActivityBus)
        assert isinstance(gateway.providers, ProviderRegistry)
        ctx = plugin.ctx
        assert (ctx.registry, ctx.sessions, ctx.channels) == (
            gateway.registry,
            gateway.sessions,
            gateway.channels,
        )
        assert (ctx.activity, ctx.providers) == (gateway.activity, gateway.providers)
        gateway.shutdown()
        assert (gateway.stop.is_set(), gateway.exit_code) == (True, 0)


async def test_002_44_channels_stop_then_turns_then_plugins_then_providers(tmp_path: Path) -> None:
    notes: list[str] = []

    class Box(Letterbox):
        async def run(self, receive: Any) -> None:
            try:
                await super().run(receive)
            finally:
                notes.append("channel")
                gate.set()

    class Last(Noted):
        async def after_agent_run(self, reason: Any, ctx: Any) -> None:
            notes.append(reason)

        async def deactivate(self) -> None:
            notes.append("plugin, provider open" if not chat.model.closed else "plugin")

    gate, box = asyncio.Event(), Box()
    async with chatting(tmp_path, Bringing(box), Last("last")) as chat:
        chat.model.then(Reply((Say("On "), Gate(gate), Say("the way."))))
        await box.write(written("go", channel=box.id))
        await (await chat.watch()).until(lambda frame: getattr(frame, "content", "") == "On ")
    assert notes == ["channel", "complete", "plugin, provider open"]
    assert chat.model.closed
    assert [out.message.text for out in box.sent] == ["On the way."]


async def test_stopping_goes_on_when_a_part_of_it_fails(tmp_path: Path) -> None:
    class Clumsy(Noted):
        async def deactivate(self) -> None:
            raise ValueError("no")

    class Stubborn(Letterbox):
        async def run(self, receive: Any) -> None:
            try:
                await super().run(receive)
            finally:
                raise ValueError("not yet")

    notes: list[str] = []
    async with chatting(tmp_path, Noted("a", notes), Clumsy("b", notes), Bringing(Stubborn())) as chat:
        await chat.say("hi")
    assert notes == ["+a", "+b", "-a"]
    assert chat.model.closed
