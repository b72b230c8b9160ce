"""Plugins without code, and the parts of plugins that are no code: skills, agents, prompt commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import Plugin, PluginError, SettingsError, Tool, ToolResultPart, tool_from
from gateway.app import Gateway
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.claude import convert
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.plugin_services.bundles import read_parts
from gateway.plugin_services.bundles.prompts import PromptCommand, parse_prompt
from gateway.settings import Settings
from gateway.settings.sections import Origin
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Say, Use

FILES = {
    "plugin.yml": "name: kit\nversion: 1.0\n",
    "skills/forms/SKILL.md": "---\nname: forms\ndescription: Fills forms\n---\nRead first.\n",
    "agents/clerk.md": "---\ndescription: Fills forms\n---\nYou fill forms.\n",
    "commands/review.md": "---\ndescription: Review\nargument-hint: FILE\n---\nReview $1 for $ARGUMENTS.\n",
    "commands/ask.yml": "arguments: [who, what]\nprompt: Ask $who about $what, not $HOME.\n",
}


class Desk:
    """A folder with settings, where bundles are approved."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "config/trunkline.toml"

    def write(self, files: Mapping[str, str], name: str = "kit") -> Path:
        for path, text in files.items():
            file = self.root / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return self.root / name

    def approve(self, folder: Path) -> None:
        settings = Settings(data_dir=self.root / "data").with_origin(Origin(file=self.file))
        admission = Admission(settings, self.root, self.root / "home")
        Installer(admission, {}).approve(str(folder), (), "operator")

    @property
    def kind(self) -> type[Gateway]:
        desk = self

        class Here(Gateway):
            def __init__(self, settings: Settings, **options: Any) -> None:
                super().__init__(settings.with_origin(Origin(file=desk.file)), **options)

        return Here


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "config").mkdir()
    return Desk(tmp_path)


@contextlib.asynccontextmanager
async def working(
    desk: Desk, files: Mapping[str, str] = FILES, *others: Plugin, **settings: Any
) -> AsyncGenerator[Chat]:
    """A chat with one approved bundle; ``own`` are the settings of the plugin."""
    folder = desk.write(files)
    desk.approve(folder)
    plugins = {"enabled": [str(folder)], "kit": settings.pop("own", {})}
    async with chatting(desk.root / "data", *others, kind=desk.kind, plugins=plugins, **settings) as chat:
        yield chat


class Notes(Plugin):
    """A tool that changes something."""

    name = "notes"

    def tools(self) -> list[Tool]:
        return [tool_from(self.note)]

    async def note(self) -> str:
        """Take a note."""
        return "noted"


def offered(chat: Chat) -> set[str]:
    return {tool.name for tool in chat.model.calls[-1].options.tools}


async def test_a_bundle_without_code_works_without_a_process(desk: Desk) -> None:
    async with working(desk) as chat:
        assert (await chat.say("/review a.py")).text == "You said: Review a.py for a.py."
        assert (await chat.say('/ask "Ada L" the new  forms')).text == (
            "You said: Ask Ada L about the new  forms, not $HOME."
        )
        assert (await chat.say("/ask Ada")).text == "Usage: /ask <who> <what>"
        assert "/review" in (await chat.say("/help")).text
        await chat.say("hi", "t", agent="clerk")
        assert "You fill forms." in (chat.model.calls[-1].options.system_prompt or "")
        assert "- forms: Fills forms" in (chat.model.calls[-1].options.system_prompt or "")
        # No process was started, not even the one that clones others.
        assert chat.gateway.processes.launcher.zygote is None


async def test_agents_of_a_plugin_have_only_its_tools_and_those_of_the_settings(desk: Desk) -> None:
    files = FILES | {"agents/greedy.md": '---\ntools: ["calculator", "utc_time", "skill"]\n---\nGo on.\n'}
    async with working(desk, files, own={"agent_tools": ["calculator"]}) as chat:
        await chat.say("hi", "clerk", agent="clerk")
        assert offered(chat) == {"calculator", "skill", "skill_file"}
        await chat.say("hi", "greedy", agent="greedy")
        assert offered(chat) == {"calculator", "skill"}
        await chat.say("hi", "main")
        assert "utc_time" in offered(chat)


async def test_the_settings_and_built_in_agents_win_over_those_of_a_plugin(desk: Desk) -> None:
    files = FILES | {"agents/general.md": "Serve the plugin.", "agents/desk.md": "Serve the plugin."}
    agents = {"desk": {"system_prompt": "Serve the user."}}
    async with working(desk, files, agents=agents) as chat:
        assert chat.gateway.profiles.get("desk").system_prompt == "Serve the user."
        assert "You work on one task" in chat.gateway.profiles.get("general").system_prompt


async def test_text_of_an_unknown_author_makes_tools_ask(desk: Desk) -> None:
    load = Reply((Use("skill", '{"name": "forms"}'),), "tools")
    note = Reply((Use("note"),), "tools")

    async def results(chat: Chat, text: str, *replies: Reply, session: str = "s") -> list[str]:
        chat.model.then(*replies, Reply((Say("done"),)))
        answer = await chat.say(text, session, unattended=True)
        return [part.output for part in answer.parts if isinstance(part, ToolResultPart)]

    async with working(desk, FILES, Notes()) as chat:
        assert await results(chat, "go", note) == ["noted"]
        loaded, refused = await results(chat, "go", load, note)
        assert loaded == "Read first."
        assert "no user can be asked here. This conversation holds content from outside" in refused
        [refused] = await results(chat, "/review a.py", note, session="commands")
        assert "This conversation holds content from outside" in refused
    async with working(desk, FILES, Notes(), own={"trust": "full"}) as chat:
        assert await results(chat, "go", load, note, session="full") == ["Read first.", "noted"]
        assert await results(chat, "/review a.py", note, session="full") == ["noted"]


async def test_no_prompt_runs_a_command(desk: Desk) -> None:
    files = FILES | {"commands/say.md": "$ARGUMENTS", "commands/help.md": "Not the help."}
    async with working(desk, files) as chat:
        assert (await chat.say("/say /new")).text == "/say cannot begin its text with a command."
        assert (await chat.say("/say hello")).text == "You said: hello"
        assert "Not the help" not in (await chat.say("/help")).text


async def test_the_parts_end_with_the_plugin(desk: Desk) -> None:
    async with working(desk) as chat:
        gateway = chat.gateway
        plugin = gateway.registry.get("kit")
        assert isinstance(plugin, ConfinedPlugin)
        plugin.stop_soon("it was withdrawn")
        assert "clerk" not in gateway.profiles.all
        assert not gateway.skills.skills
        assert "Unknown command" in (await chat.say("/review a.py")).text
        while not (problem := await plugin.find_problem()):
            await asyncio.sleep(0.01)
        assert problem == "stopped: it was withdrawn"


async def test_a_replaced_plugin_leaves_the_parts_of_its_successor(desk: Desk) -> None:
    async with working(desk) as chat:
        gateway = chat.gateway
        desk.write({"agents/clerk.md": "You are new.", "commands/review.md": "New $1."})
        desk.approve(desk.root / "kit")
        entry = gateway.settings.plugins.enabled[0]
        await gateway.registry.replace("kit", gateway._resolver.load(entry))
        assert gateway.profiles.get("clerk").system_prompt == "You are new."
        assert (await chat.say("/review a.py")).text == "You said: New a.py."


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"skills/forms/SKILL.md": "no table"}, "skills/forms/SKILL.md:1: must begin with a line ---"),
        ({"agents/clerk.md": "---\ncolour: red\n---\nGo."}, "agents/clerk.md:2: colour is not a setting"),
        ({"agents/clerk.md": "Go.\u202e"}, "agents/clerk.md:1: has the invisible character U+202E"),
        ({"commands/Big.md": "Go."}, "a command is named by its file"),
        ({"commands/run.md": "/new"}, "must not begin with /"),
        (
            {"commands/run.md": "---\nmodel: x\n---\nGo."},
            "commands/run.md:2: model: is not a key of a command",
        ),
        ({"commands/run.yml": "description: x\n"}, "prompt: is missing"),
        ({"commands/review.yml": "prompt: Go.\n"}, "review.md and review.yml are one command"),
        (
            {"plugin.yml": "name: kit\nversion: 1.0\ncommands: [other]\n"},
            "commands in plugin.yml lists 'other'",
        ),
    ],
)
async def test_a_mistake_in_a_part_fails_the_plugin(desk: Desk, files: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        async with working(desk, FILES | files):
            pass
    assert said in str(caught.value)


async def test_a_bundle_without_parts_is_refused(desk: Desk) -> None:
    with pytest.raises(
        SettingsError, match="has no code and no tools, skills, agents, commands or MCP servers"
    ):
        async with working(desk, {"plugin.yml": FILES["plugin.yml"]}):
            pass


async def test_a_changed_bundle_is_refused(desk: Desk) -> None:
    folder = desk.write(FILES)
    desk.approve(folder)
    (folder / "commands/review.md").write_text("Something else")
    with pytest.raises(SettingsError, match="was changed after its approval"):
        async with chatting(desk.root / "data", kind=desk.kind, plugins={"enabled": [str(folder)]}):
            pass


async def test_a_plugin_of_claude_code_works_in_a_chat(desk: Desk) -> None:
    folder = desk.write(
        {
            ".claude-plugin/plugin.json": '{"name": "kit"}',
            "skills/forms/SKILL.md": "---\nname: Forms\ndescription: Fills forms\n---\nRead first.\n",
            "agents/clerk.md": "---\ntools: Bash, calculator\nmodel: opus\n---\nYou fill forms.\n",
            "commands/review.md": "---\nallowed-tools: Bash(git:*)\n---\nReview $ARGUMENTS.\n",
        }
    )
    convert(folder)
    async with working(desk, {}, own={"agent_tools": ["calculator", "utc_time"]}) as chat:
        assert (await chat.say("/review a.py")).text == "You said: Review a.py."
        await chat.say("hi", "t", agent="clerk")
        prompt = chat.model.calls[-1].options.system_prompt or ""
        assert "You fill forms." in prompt
        assert "- forms: Fills forms" in prompt
        assert offered(chat) == {"calculator"}


def test_words_of_the_user_are_not_expanded() -> None:
    both = PromptCommand("x", "Compare $1 with $2: $ARGUMENTS")
    assert both.expand("$2 $1") == "Compare $2 with $1: $2 $1"
    assert both.expand("") == "Compare  with : "
    assert PromptCommand("x", "Go on.").expand("now") == "Go on.\n\nnow"
    assert PromptCommand("x", "$10 and $1").expand("a") == "$10 and a"


@given(st.binary(max_size=300), st.sampled_from(["run.md", "run.yml"]))
def test_any_command_file_is_read_or_refused(data: bytes, file: str) -> None:
    with contextlib.suppress(PluginError):
        found = parse_prompt(data, file, file)
        assert found.text
        found.expand("some words")


def test_parts_are_described_before_their_installation(desk: Desk) -> None:
    assert read_parts(desk.write(FILES)).describe() == [
        "teaches models the skills forms",
        "adds the agents clerk",
        "adds commands that send its text to the model: /ask, /review",
    ]
    assert json.dumps(read_parts(desk.root / "none").describe()) == "[]"


CODE = """\
from trunkline_plugin import plugin, tool


@plugin
async def start(ctx):
    async def weigh(args, context):
        return "1 kg"

    async def hello(args, context):
        return "hello"

    schema = {"type": "object", "properties": {}}
    return {
        "tools": [tool(name="weigh", description="Weigh", schema=schema, execute=weigh)],
        "commands": [{"name": "hello", "description": "Greet", "execute": hello}],
    }
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
async def test_parts_of_a_plugin_with_code_are_beside_it(desk: Desk) -> None:
    manifest = FILES["plugin.yml"] + "tools: [weigh]\ncommands: [hello]\n"
    async with working(desk, FILES | {"plugin.yml": manifest, "main.py": CODE}) as chat:
        assert (await chat.say("/hello")).text == "hello"
        assert (await chat.say("/review a.py")).text == "You said: Review a.py for a.py."
        await chat.say("hi", "clerk", agent="clerk")
        assert offered(chat) == {"weigh", "skill", "skill_file"}
