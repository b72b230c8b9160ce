"""What plugins may register, read of one another, and take back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import (
    MentionCompletion,
    Message,
    Plugin,
    PluginContext,
    PluginError,
    Provider,
    ProviderConfig,
    SlashCommand,
    StatusSegment,
    TextPart,
    Tool,
    tool_from,
)
from gateway.channel import MessageFrame
from gateway.contract.errors import AlreadyRegisteredError, ProviderResolutionError
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.contributions import ConsoleUI
from gateway.extensions.registry import AgentSources, ChannelRegistry, PluginRegistry
from gateway.extensions.scope import Scope
from gateway.provider_http import ToolDefinition
from gateway.testing.chat import chatting
from gateway.testing.letterbox import Letterbox


def context_for(registry: PluginRegistry, plugin: Plugin, scope: Scope, **extras: Any) -> PluginContext:
    """A context with nothing that a host may lack."""
    contributions, name = registry.contributions, plugin.name

    def set_status(segments: Sequence[StatusSegment]) -> None:
        scope.put("status", contributions.set_status, name, segments)

    return PluginContext(
        cwd="/",
        config={},
        options=lambda model: model(),
        registry=registry,
        get_plugin=registry.get,
        set_status_line=set_status,
        register_message_renderer=partial(scope.add, contributions.add, name, "renderer"),
        register_shortcut=partial(scope.add, contributions.add, name, "shortcut"),
        register_mention_provider=partial(scope.add, contributions.add, name, "mention"),
        **extras,
    )


class Noted(Plugin):
    """A plugin that notes its beginning and its end, and keeps its context."""

    def __init__(self, name: str, notes: list[str] | None = None) -> None:
        self.name = name
        self.notes = notes if notes is not None else []

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx
        self.notes.append(f"+{self.name}")

    async def deactivate(self) -> None:
        self.notes.append(f"-{self.name}")


async def registered(*plugins: Plugin) -> PluginRegistry:
    """A registry with plugins in it."""
    registry = PluginRegistry(context_for)
    for plugin in plugins:
        await registry.register(plugin)
    return registry


async def test_002_09_a_plugin_is_activated_and_deactivated_once() -> None:
    plugin = Noted("a")
    registry = await registered(plugin)
    assert plugin.notes == ["+a"]
    await registry.unregister("a")
    await registry.unregister("a")
    assert plugin.notes == ["+a", "-a"]
    assert registry.list() == ()


async def test_002_09_all_contributions_are_optional() -> None:
    class Bare(Plugin):
        name = "bare"

    registry = await registered(Bare())
    assert registry.get_tools() == ()
    assert registry.current.commands() == {}
    assert registry.current.agent_loop() is None
    assert await registry.get_system_prompts() == ()
    assert registry.get_status_segments() == ()


async def test_002_09_an_activation_that_fails_leaves_nothing_behind() -> None:
    class Failing(Plugin):
        name = "failing"

        async def activate(self, ctx: PluginContext) -> None:
            ctx.set_status_line([StatusSegment("here")])
            raise RuntimeError("no")

    registry = await registered()
    with pytest.raises(PluginError, match="failing"):
        await registry.register(Failing())
    assert registry.get("failing") is None
    assert registry.get_status_segments() == ()


async def test_names_of_plugins_and_tools_are_taken_once() -> None:
    async def work() -> str:
        """Work."""
        return ""

    class Worker(Plugin):
        def __init__(self, name: str, times: int = 1) -> None:
            self.name = name
            self.times = times

        def tools(self) -> Sequence[Tool]:
            return [tool_from(work)] * self.times

    registry = await registered(Worker("a"))
    for other in (Worker("a"), Worker("b")):
        with pytest.raises(AlreadyRegisteredError):
            await registry.register(other)
    with pytest.raises(AlreadyRegisteredError, match="work"):
        await (await registered()).register(Worker("twice", 2))
    assert [plugin.name for plugin in registry.list()] == ["a"]


class Misspelt(Plugin):
    """Means to be a guard."""

    name = "guard"

    async def transform_user_inputs(self, text: str, _ctx: object) -> str:
        return text


async def test_a_plugin_with_a_misspelt_hook_is_refused() -> None:
    registry = await registered()
    with pytest.raises(PluginError, match="is not a hook; did you mean 'transform_user_input'"):
        await registry.register(Misspelt())
    assert registry.get("guard") is None


async def test_of_two_commands_with_one_name_the_first_is_used_and_the_log_has_the_other() -> None:
    class Named(Noted):
        def commands(self) -> Sequence[SlashCommand]:
            async def run(rest: str, ctx: Any) -> str:
                return self.name

            return [SlashCommand("same", self.name, run)]

    with capture_logs() as lines:
        registry = await registered(Named("a"), Noted("b"), Named("c"))
    told = "two plugins have one command; the first is used"
    assert lines == [{"event": told, "log_level": "warning", "command": "same", "plugin": "c", "used": "a"}]
    assert registry.current.unused_commands() == [("same", "c", "a")]
    await registry.unregister("a")
    assert registry.current.commands()["same"][0].description == "c"


async def test_shutdown_unregisters_in_reverse_and_survives_a_bad_farewell() -> None:
    class Clinging(Noted):
        async def deactivate(self) -> None:
            await super().deactivate()
            raise RuntimeError("I want to stay")

    notes: list[str] = []
    registry = await registered(Noted("a", notes), Clinging("b", notes), Noted("c", notes))
    await registry.shutdown()
    assert notes == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert registry.list() == ()


async def test_002_10_siblings_see_each_others_attributes() -> None:
    class Owner(Noted):
        approvals = "the gateway of approvals"

    first, second = Owner("owner"), Noted("guest")
    await registered(first, second)
    sibling = second.ctx.get_plugin("owner")
    assert sibling is first
    assert sibling.approvals == "the gateway of approvals"  # type: ignore[attr-defined]
    assert second.ctx.get_plugin("nobody") is None


async def test_002_11_the_registry_view_has_five_reading_methods(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Reader(Noted):
        system_prompt = "Read."

        async def before_llm_call(self, messages: Any, options: Any, ctx: Any) -> None:
            view = self.ctx.registry
            seen["tools"] = [tool.name for tool in view.get_tools()]
            seen["filtered"] = [tool.name for tool in await view.get_filtered_tools(ctx)]
            seen["hooks"] = view.get_hooks().uses("before_llm_call")
            seen["prompts"] = await view.get_system_prompts()
            seen["transformed"] = await view.apply_system_prompt_transforms("x", ctx)

        async def filter_tools(self, tools: Sequence[Tool], ctx: Any) -> Sequence[Tool]:
            return tools[:1]

        async def transform_system_prompt(self, prompt: str, ctx: Any) -> str:
            return f"[{prompt}]"

    async with chatting(tmp_path, Reader("reader")) as chat:
        await chat.say("hi")
    assert seen == {
        "tools": [
            "enter_plan_mode",
            "exit_plan_mode",
            "task",
            "utc_time",
            "calculator",
            "slow_count",
            "question",
        ],
        "filtered": ["enter_plan_mode"],
        "hooks": True,
        "prompts": ("Read.",),
        "transformed": "[x]",
    }


async def test_002_15_prompts_of_plugins_are_strings_or_functions_and_empty_ones_are_left_out(
    tmp_path: Path,
) -> None:
    class Prompting(Plugin):
        def __init__(self, name: str, prompt: Any) -> None:
            self.name = name
            self.system_prompt = prompt

    async def later(ctx: PluginContext) -> str:
        return f"In {Path(ctx.cwd).name}."

    plugins = [Prompting("a", "Be kind."), Prompting("b", ""), Prompting("c", later)]
    plugins.append(Prompting("d", lambda ctx: "Be brief."))
    async with chatting(tmp_path, *plugins, system_prompt="You are Ada.") as chat:
        await chat.say("hi")
        prompt = chat.model.calls[0].options.system_prompt
    assert prompt == f"You are Ada.\n\nBe kind.\n\nIn {tmp_path.name}.\n\nBe brief."


async def test_a_prompt_that_raises_is_a_named_error_of_its_plugin(tmp_path: Path) -> None:
    class Prompting(Plugin):
        name = "prompting"

        def __init__(self) -> None:
            self.system_prompt = lambda ctx: str(1 // 0)

    async with chatting(tmp_path, Prompting()) as chat:
        [part] = (await chat.say("hi")).parts
    assert part.error_name == "PluginError"  # type: ignore[union-attr]
    assert "prompting" in part.message  # type: ignore[union-attr]


async def test_002_23_a_message_with_a_type_goes_to_its_renderer(tmp_path: Path) -> None:
    plugin = Noted("cards")
    async with chatting(tmp_path, plugin) as chat:
        unregister = plugin.ctx.register_message_renderer("card", lambda message: f"**{message.text}**")
        plugin.ctx.register_message_renderer("card", lambda message: "the second has no say")
        await chat.say("hi")
        watcher = await chat.watch()
        bus = (await chat.gateway.parts.sessions.find("s")).bus
        card = Message(session_id="s", role="assistant", parts=(TextPart("Ace"),), custom_type="card")
        bus.append(card)
        shown = await watcher.until(lambda f: isinstance(f, MessageFrame) and f.message.id == card.id)
        assert shown.rendered == "**Ace**"
        replayed = await (await chat.watch()).until(lambda f: isinstance(f, MessageFrame) and f.rendered)
        assert replayed.message.id == card.id
        unregister()
        late = await (await chat.watch()).until(
            lambda f: isinstance(f, MessageFrame) and f.message.id == card.id
        )
        assert late.rendered == "the second has no say"


async def test_002_23_a_renderer_that_fails_leaves_the_message_as_it_is() -> None:
    plugin = Noted("cards")
    registry = await registered(plugin)
    plugin.ctx.register_message_renderer("card", lambda message: str(1 // 0))
    card = Message(session_id="s", role="assistant", custom_type="card")
    assert registry.render(card) is None
    assert registry.render(Message(session_id="s", role="assistant", custom_type="other")) is None


async def test_002_24_a_registered_key_is_used_up(tmp_path: Path) -> None:
    pressed: list[str] = []

    async def later() -> None:
        pressed.append("async")

    def broken() -> None:
        raise ValueError("no")

    plugin = Noted("keys")
    async with chatting(tmp_path, plugin) as chat:
        remove = plugin.ctx.register_shortcut("tab", lambda: pressed.append("tab"))
        plugin.ctx.register_shortcut("ctrl+t", later)
        plugin.ctx.register_shortcut("f1", broken)
        assert [await chat.host.press(key) for key in ("tab", "ctrl+t", "f1")] == [True, True, True]
        assert await chat.host.press("escape") is False
        remove()
        assert await chat.host.press("tab") is False
        assert pressed == ["tab", "async"]


async def test_002_25_mentions_complete_by_trigger_and_nothing_hides_the_picker(tmp_path: Path) -> None:
    async def people(partial: str) -> list[MentionCompletion]:
        return [MentionCompletion(name) for name in ("ada", "alan", "grace") if name.startswith(partial)]

    plugin = Noted("people")
    async with chatting(tmp_path, plugin) as chat:
        remove = plugin.ctx.register_mention_provider("@", people)
        plugin.ctx.register_mention_provider(
            "#", lambda partial: [MentionCompletion("12", "Issue 12", "open")]
        )
        assert await chat.host.complete("a") == (
            MentionCompletion("ada", "ada"),
            MentionCompletion("alan", "alan"),
        )
        assert await chat.host.complete("", "#") == (MentionCompletion("12", "Issue 12", "open"),)
        assert await chat.host.complete("zz") == ()
        remove()
        assert await chat.host.complete("a") == ()


async def test_arguments_of_commands_complete_like_mentions(tmp_path: Path) -> None:
    async with chatting(tmp_path, agents={"peer": {"description": "Writes verse"}, "ape": {}}) as chat:
        assert {"/agent ", "/model ", "/link "} <= {*chat.host.triggers()}
        assert await chat.host.complete("pe", "/agent ") == (
            MentionCompletion("/agent peer", "peer", "Writes verse"),
            MentionCompletion("/agent ape", "ape"),
        )
        assert await chat.host.complete("", "/help ") == ()


async def test_002_26_status_segments_are_pushed_and_cleared() -> None:
    changes: list[str] = []
    first, second = Noted("a"), Noted("b")
    registry = await registered(first, second)
    stop = registry.contributions.on_change("status", lambda: changes.append("changed"))
    second.ctx.set_status_line([StatusSegment("busy", color="red")])
    first.ctx.set_status_line([StatusSegment("build", dim=True)])
    first.ctx.set_status_line([StatusSegment("build", dim=True)])
    assert [segment.text for segment in registry.get_status_segments()] == ["build", "busy"]
    assert len(changes) == 2
    first.ctx.set_status_line([])
    first.ctx.set_status_line([])
    assert [segment.text for segment in registry.get_status_segments()] == ["busy"]
    assert len(changes) == 3
    stop()
    await registry.unregister("b")
    assert registry.get_status_segments() == ()
    assert len(changes) == 3


@pytest.mark.parametrize(
    ("level", "logged"), [("info", "info"), ("success", "info"), ("warning", "warning"), ("error", "error")]
)
def test_002_27_notices_go_to_the_log_at_their_level(level: Any, logged: str) -> None:
    with capture_logs() as lines:
        ConsoleUI().notify("The disk is full", level)
    assert [(line["event"], line["log_level"]) for line in lines] == [("The disk is full", logged)]


async def test_002_27_the_console_answers_at_once() -> None:
    ui = ConsoleUI()
    assert await ui.confirm("Go on", "Really?") is False
    assert await ui.select("Which", ["a", "b"]) == "a"
    assert await ui.select("Which", []) is None
    assert await ui.input("Name") is None


async def test_002_28_plugins_survive_absent_extras() -> None:
    from plugins.providers import create as providers
    from plugins.tools import create as tools

    registry = await registered(providers(), tools())
    ctx = context_for(registry, tools(), Scope("tools"))
    extras = ("ui", "shutdown", "submit", "providers", "channels", "sessions", "activity", "agents")
    assert [getattr(ctx, extra) for extra in extras] == [None] * len(extras)
    assert [plugin.name for plugin in registry.list()] == ["providers", "tools"]


async def test_002_36_agent_sources_are_visible_to_later_plugins(tmp_path: Path) -> None:
    class Publisher(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            assert ctx.agents is not None
            self.remove: Callable[[], None] = ctx.agents.register_source(tmp_path / "agents")

    publisher, later = Publisher("publisher"), Noted("later")
    async with chatting(tmp_path, publisher, later):
        assert later.ctx.agents is not None
        assert later.ctx.agents.list() == (tmp_path / "agents",)
        publisher.remove()
        assert later.ctx.agents.list() == ()


async def test_002_36_agents_of_the_published_registry_may_come_while_the_gateway_runs(
    tmp_path: Path,
) -> None:
    later = Noted("later")
    async with chatting(tmp_path, later) as chat:
        assert later.ctx.agents is not None
        assert "unknown agent 'poet'" in (await chat.say("/agent poet")).text
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "poet.md").write_text("---\ndescription: Writes verse\n---\nYou are a poet.\n")
        later.ctx.agents.register_source(tmp_path / "agents")
        assert "This session now uses the agent `poet`" in (await chat.say("/agent poet")).text


async def test_002_36_a_published_registry_is_what_later_plugins_get(tmp_path: Path) -> None:
    class Publisher(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            assert ctx.set_agents_registry is not None
            assert ctx.agents is not None
            ctx.set_agents_registry(own)

    own = AgentSources()
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "poet.md").write_text("---\ndescription: Writes verse\n---\nYou are a poet.\n")
    own.register_source(tmp_path / "agents")
    earlier, publisher, later = Noted("earlier"), Publisher("publisher"), Noted("later")
    async with chatting(tmp_path, earlier, publisher, later) as chat:
        assert earlier.ctx.agents is not None
        assert later.ctx.agents is not None
        assert (earlier.ctx.agents.list(), later.ctx.agents.list()) == ((), own.list())
        assert "poet" in chat.gateway.profiles.all


def test_002_36_agent_sources_are_absolute() -> None:
    with pytest.raises(PluginError, match="absolute"):
        AgentSources().register_source(Path("agents"))


@pytest.mark.parametrize(
    ("name", "schema", "told"),
    [
        ("first", {}, "tool 'first' is already registered by 'one'"),
        ("sp ace", {}, "the name of the tool 'sp ace' must have 1 to 64 letters"),
        (
            "fine",
            {"properties": {"a": {"type": "any"}}},
            "the schema of the tool 'fine' is not a JSON Schema",
        ),
    ],
)
async def test_a_tool_that_a_plugin_has_after_its_activation_is_checked(
    name: str, schema: dict[str, Any], told: str
) -> None:
    class Late(Noted):
        found: tuple[Tool, ...] = ()

        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            self.found = (Tool(definition=ToolDefinition(name, "A tool", schema), execute=run),)

        def tools(self) -> Sequence[Tool]:
            return self.found

    async def run(arguments: Any, context: Any) -> str:
        """A tool."""
        return ""

    class One(Noted):
        def tools(self) -> Sequence[Tool]:
            return (Tool(definition=ToolDefinition("first", "A tool", {}), execute=run),)

    late = Late("late")
    registry = await registered(One("one"))
    with pytest.raises(PluginError, match=told):
        await registry.register(late)
    assert late.notes == ["+late", "-late"]
    assert [tool.name for tool in registry.get_tools()] == ["first"]


@pytest.mark.parametrize(
    ("method", "offer", "told"),
    [
        ("tools", [test_002_36_agent_sources_are_absolute], r"tools\(\) must return a list of Tool"),
        ("tools", 5, r"tools\(\) must return a list of Tool"),
        ("commands", {"hello": 5}, r"commands\(\) must return a list of SlashCommand"),
        ("commands", [SlashCommand("/say hello", "Say it", Noted)], "'/say hello' cannot be typed"),
    ],
)
async def test_what_a_plugin_lists_has_the_right_type(method: str, offer: object, told: str) -> None:
    plugin = Noted("mine")
    setattr(plugin, method, lambda: offer)
    registry = PluginRegistry(context_for)
    with pytest.raises(PluginError, match=told):
        await registry.register(plugin)
    assert registry.list() == ()


async def test_a_failed_activation_names_the_kind_of_the_error() -> None:
    class Hasty(Noted):
        async def activate(self, ctx: PluginContext) -> None:
            ctx.config["zone"]

    with pytest.raises(PluginError, match="plugin 'hasty' failed to activate: KeyError: 'zone'"):
        await registered(Hasty("hasty"))


async def test_a_provider_whose_code_fails_is_left_to_the_fallback_chain() -> None:
    def make(config: ProviderConfig) -> Provider:
        raise ValueError("no port")

    providers = ProviderRegistry(lambda name: ProviderConfig(id=name))
    providers.add_factory("mine", make)
    with pytest.raises(ProviderResolutionError, match="'mine' cannot be created: ValueError: no port"):
        await providers.ready("mine")


def test_a_channel_is_registered_once_and_can_be_taken_back() -> None:
    channels = ChannelRegistry()
    remove = channels.register(Letterbox())
    with pytest.raises(AlreadyRegisteredError, match="already registered"):
        channels.register(Letterbox())
    remove()
    assert channels.list() == ()


async def test_001_33_unregistering_takes_everything_of_a_plugin_away() -> None:
    class Full(Noted):
        def commands(self) -> Sequence[SlashCommand]:
            async def run(rest: str, ctx: Any) -> str:
                return rest

            return [SlashCommand("full", "Full", run)]

    plugin = Full("full")
    registry = await registered(plugin)
    plugin.ctx.register_shortcut("tab", lambda: None)
    plugin.ctx.register_message_renderer("card", lambda message: "")
    plugin.ctx.register_mention_provider("@", lambda partial: ())
    assert list(registry.current.commands()) == ["full"]
    await registry.unregister("full")
    assert registry.current.commands() == {}
    assert registry.get_renderer("card") is None
    assert registry.get_shortcuts() == registry.get_mention_triggers() == ()
