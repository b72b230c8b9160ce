"""The composition root: what is registered in which order, what the handle holds, how it starts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pydantic import BaseModel
from structlog.testing import capture_logs

from gateway import Message, Plugin, PluginContext, SettingsError, Tool, tool_from
from gateway.app import Gateway
from gateway.contract.channel import Address
from gateway.contract.errors import InvalidStateError, PluginActivationError, TrunklineError
from gateway.events.bus import ActivityBus, OwnedEvents
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.loader import load_plugin
from gateway.extensions.registry import ChannelRegistry, PluginRegistry
from gateway.session import OwnedSessions, Sessions
from gateway.settings import PluginsSettings, Settings, load_settings
from gateway.testing.chat import CHANNEL, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings


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
    async with chatting(tmp_path, Brings(*boxes)) as chat:
        assert [channel.id for channel in chat.gateway.channels.list()] == ["letters", "pigeons", CHANNEL]
        for box in boxes:
            await box.write(written(f"hello {box.id}", session=box.id, channel=box.id))
        placed = [(await box.until(1))[0] for box in boxes]
        assert [out.message.text for out in placed] == ["You said: hello letters", "You said: hello pigeons"]
        assert chat.gateway.health()["pigeons"] == (True, "")
    assert not any(box.open.is_set() for box in boxes), "they are stopped again"


async def test_002_33_a_channel_gets_the_response_mode(tmp_path: Path) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Brings(box)):
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
    assert load_settings(environ={}, cwd=tmp_path).model_dump() == Settings().model_dump()


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
def test_002_40_a_wrong_entry_is_reported_and_not_shown(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(f'{{"plugins": {{"enabled": [{entry}]}}}}')
    with pytest.raises(SettingsError, match=r"own\.json:1: plugins\.enabled must list plugin names"):
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


class Broken(Noted):
    """Fails when it is activated."""

    async def activate(self, ctx: PluginContext) -> None:
        raise ValueError("no")


class Dawdling(Noted):
    """Never gets ready."""

    async def activate(self, ctx: PluginContext) -> None:
        await asyncio.Event().wait()


async def refused_start(gateway: Gateway) -> TrunklineError:
    """Start a gateway that must not start. Returns why."""
    with pytest.raises(TrunklineError) as caught:
        async with gateway.running():
            pytest.fail("it must not start")
    return caught.value


@pytest.mark.parametrize(
    ("plugin", "why"),
    [(Broken("bad"), "failed to activate: ValueError: no"), (Dawdling("bad"), "no result within 0.05 s")],
)
async def test_a_plugin_that_does_not_activate_stops_the_start_for_a_later_one(
    tmp_path: Path, plugin: Plugin, why: str
) -> None:
    listed = {"enabled": ("bad", "well"), "bad": {"activate_timeout_ms": 50}}
    found = {"bad": plugin, "well": Noted("well")}
    error = await refused_start(Gateway(settings_for(tmp_path, plugins=listed), resolve_plugin=found.get))
    assert (type(error), error.retryable) == (PluginActivationError, True)
    assert why in str(error)
    assert "optional = true in [plugins.bad]" in str(error)
    assert found["well"].notes == ["+well", "-well"]


async def test_a_plugin_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    listed = {"enabled": (str(tmp_path / "gone.py"), "bad")}
    error = await refused_start(Gateway(settings_for(tmp_path, plugins=listed)))
    assert isinstance(error, SettingsError)
    assert "gone.py' cannot be loaded: FileNotFoundError" in str(error)
    assert f'optional = true in [plugins."{tmp_path}/gone.py"]' in str(error)


async def test_settings_that_a_plugin_refuses_stop_the_start_permanently(tmp_path: Path) -> None:
    class Choosy(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            raise SettingsError("plugins.bad.colour: red is none")

    settings = settings_for(tmp_path, plugins={"enabled": ("bad",)})
    error = await refused_start(Gateway(settings, resolve_plugin={"bad": Choosy("bad")}.get))
    assert isinstance(error, SettingsError)


async def test_wrong_settings_of_a_plugin_are_refused_before_it_is_activated(tmp_path: Path) -> None:
    class NoSettings(BaseModel):
        """No keys."""

    class Plain(Noted):
        settings_model = NoSettings

    plugin = Plain("plain")
    settings = settings_for(tmp_path, plugins={"enabled": ("plain",), "plain": {"colour": "red"}})
    error = await refused_start(Gateway(settings, resolve_plugin={"plain": plugin}.get))
    assert isinstance(error, SettingsError)
    assert "plugins.plain.colour is not a setting" in str(error)
    assert not hasattr(plugin, "ctx")


async def test_an_optional_plugin_that_fails_is_skipped_and_health_is_red(tmp_path: Path) -> None:
    listed = {"enabled": ("bad", "gone", "well")} | {"bad": {"optional": True}, "gone": {"optional": True}}
    found = {"bad": Broken("bad"), "well": Noted("well")}

    def resolve(name: str) -> Plugin:
        return found[name] if name in found else load_plugin(name)

    gateway = Gateway(settings_for(tmp_path, plugins=listed), resolve_plugin=resolve)
    async with gateway.running():
        assert names(gateway) == ["well"]
        assert gateway.health()["plugin bad"] == (False, "plugin 'bad' failed to activate: ValueError: no")
        assert gateway.health()["plugin gone"][0] is False


async def test_a_callers_plugin_that_fails_is_an_error(tmp_path: Path) -> None:
    error = await refused_start(Gateway(settings_for(tmp_path), plugins=[Broken("broken")]))
    assert "broken" in str(error)


class Tooled(Noted):
    """Has one tool, named after itself, unless it is silent."""

    silent = False

    def tools(self) -> Sequence[Tool]:
        async def work() -> str:
            """Work."""
            return "done"

        tool = tool_from(work)
        definition = structs.replace(tool.definition, name=f"{self.name}_work")
        return [] if self.silent else [structs.replace(tool, definition=definition)]


class Silent(Tooled):
    """Has tools later, perhaps."""

    silent = True


class BrokenTooled(Tooled, Broken):
    """Would have a tool, and fails."""


@pytest.mark.parametrize(
    "name", ["calculater", "gone_work", "missing-tool@admin", "script:Bash", "bad_other"]
)
async def test_a_permission_of_an_unknown_tool_is_refused(tmp_path: Path, name: str) -> None:
    listed = {"enabled": ("bad",), "bad": {"optional": True}}
    settings = settings_for(tmp_path, permissions={name: "allow"}, plugins=listed)
    found = {"bad": BrokenTooled("bad")}
    error = await refused_start(Gateway(settings, resolve_plugin=found.get))
    assert isinstance(error, SettingsError)
    assert f"permissions.{name}: unknown tool" in str(error)
    if name == "calculater":
        assert "did you mean calculator?" in str(error)


@pytest.mark.parametrize("name", ["bad_work", "late_work", "late-work@admin", "gone_anything"])
async def test_a_permission_of_a_tool_that_may_come_is_reported(tmp_path: Path, name: str) -> None:
    listed = {"enabled": ("bad", "gone", "late")} | {"bad": {"optional": True}, "gone": {"optional": True}}
    found = {"bad": BrokenTooled("bad"), "late": Silent("late")}

    def resolve(wanted: str) -> Plugin:
        return found[wanted] if wanted in found else load_plugin(wanted)

    settings = settings_for(tmp_path, permissions={name: "allow"}, plugins=listed)
    with capture_logs() as lines:
        async with Gateway(settings, resolve_plugin=resolve).running():
            pass
    told = [line for line in lines if line["event"] == "a permission names a tool that is not known yet"]
    assert [line["tool"] for line in told] == [name.partition("@")[0]]


async def test_permissions_of_known_tools_and_of_tools_of_backends_are_taken(tmp_path: Path) -> None:
    rules = {"calculator": "allow", "utc_time@admin": "ask", "*": "ask", "*@admin": "allow"}
    settings = settings_for(tmp_path, permissions={**rules, "claude-code:Bash": "deny"})
    settings = settings.model_copy(update={"plugins": PluginsSettings(enabled=("cli_backends",))})
    async with Gateway(settings).running():
        pass


async def test_a_plugin_sees_its_own_settings_and_the_variables_it_declares_and_cannot_change_them(
    tmp_path: Path,
) -> None:
    class Declaring(Noted):
        environ = ("WEATHER_API_KEY", "WEATHER_CITY")

    plugins = {"a": Declaring("a"), "b": Noted("b")}
    tables = {"a": {"at": {"x": 1}, "optional": True}, "b": {"word": "secret"}}
    settings = settings_for(tmp_path, plugins={"enabled": ("a", "b"), **tables})
    environ = {"WEATHER_API_KEY": "w", "OPENAI_API_KEY": "o"}
    async with Gateway(settings, environ=environ, resolve_plugin=plugins.get).running():
        seen = plugins["a"].ctx
        assert (seen.environ, seen.config) == ({"WEATHER_API_KEY": "w"}, {"at": {"x": 1}})
        assert plugins["b"].ctx.environ == {}
        for mapping in (seen.environ, seen.config):
            with pytest.raises(TypeError):
                mapping["PATH"] = "/tmp"  # type: ignore[index]
        seen.config["at"]["x"] = 2
        assert settings.plugins.of("a").options == {"at": {"x": 1}}


async def test_a_disabled_plugin_is_left_out_even_a_built_in_one(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, plugins={"enabled": ("a",), "disabled": ("a", "tools")})
    gateway = Gateway(settings, resolve_plugin={"a": Noted("a")}.get)
    async with gateway.running():
        assert [plugin.name for plugin in gateway.registry.list()] == [
            "commands",
            "choosing",
            "conversation",
            "access",
            "plan_mode",
            "tasks",
            "read_output",
            "skill",
            "why",
            "spending",
            "providers",
        ]


async def test_002_42_sessions_are_not_there_before_the_start(tmp_path: Path) -> None:
    gateway = Gateway(settings_for(tmp_path))
    with pytest.raises(InvalidStateError, match="has not started yet"):
        _ = gateway.parts.sessions
    async with gateway.running():
        assert await gateway.parts.sessions.list() == []


async def test_002_42_a_plugin_that_submits_while_it_is_activated_gets_an_error(tmp_path: Path) -> None:
    class Early(Noted):
        answer: Message | None = None

        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            assert ctx.submit is not None
            with pytest.raises(InvalidStateError, match="has not started yet"):
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
        assert isinstance(gateway.parts.sessions, Sessions)
        assert isinstance(gateway.channels, ChannelRegistry)
        assert isinstance(gateway.activity, ActivityBus)
        assert isinstance(gateway.providers, ProviderRegistry)
        ctx = plugin.ctx
        assert ctx.registry is gateway.registry
        assert ctx.channels is not None
        assert ctx.providers is not None
        assert ctx.channels.list() == gateway.channels.list()
        session = await gateway.parts.sessions.get_or_create(
            "s", channel="test", owner="ada", address=Address("test")
        )
        assert isinstance(ctx.sessions, OwnedSessions)
        assert [one.id for one in ctx.sessions.live()] == [session.id]
        assert isinstance(ctx.activity, ActivityBus)
        assert isinstance(ctx.events, OwnedEvents)
        assert ctx.providers.get("script") is gateway.providers.get("script")
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
    async with chatting(tmp_path, Brings(box), Last("last")) as chat:
        chat.model.then(Reply((Say("On "), Gate(gate), Say("the way."))))
        await box.write(written("go", channel=box.id))
        await (await chat.watch()).until(lambda frame: getattr(frame, "content", "") == "On ")
    assert notes == ["channel", "complete", "plugin, provider open"]
    assert chat.model.closed
    assert [out.message.text for out in box.sent] == ["On the way."]


async def test_stopping_continues_when_a_part_of_it_fails(tmp_path: Path) -> None:
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
    async with chatting(tmp_path, Noted("a", notes), Clumsy("b", notes), Brings(Stubborn())) as chat:
        await chat.say("hi")
    assert notes == ["+a", "+b", "-a"]
    assert chat.model.closed
