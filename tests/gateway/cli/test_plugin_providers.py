"""Providers that plugins bring, and several of the settings, are shown and tried like the built-in ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gateway.testing.fake_models.server import FakeModels
from tests.gateway.cli.processes import trunkline

SETTINGS = """
model = "parrot/grey"

[plugins]
enabled = ["zoo.py", {{ name = "{home}/nowhere.py", optional = true }}]

[plugins.zoo]
word = "Squawk"

[providers.desk]
base_url = "{url}"
models = ["fake-small"]

[providers.shop]
base_url = "{url}"
api_key = "k"

[providers.second]
like = "parrot"

[channels.websocket]
agent = "{agent}"
"""

ZOO = """
from pathlib import Path

import structlog

from gateway import Capabilities, ModelInfo, Plugin
from gateway.provider_http import AnswerWriter, assemble


class Bird:
    api_endpoint, auth_method = "in this process", "custom"
    capabilities = Capabilities(tools=False, images=False)

    def __init__(self, provider_id, word):
        self.id, self.name, self._word = provider_id, provider_id.title(), word

    async def initialize(self, config): ...

    async def stream(self, messages, options):
        writer = AnswerWriter(options)
        writer.text(self._word)
        for delta in writer.close(options.model, self.id):
            yield delta

    async def chat(self, messages, options):
        return await assemble(self.stream, messages, options)

    async def list_models(self):
        return [ModelInfo("grey", self.id)]

    async def close(self): ...


class Dodo(Bird):
    async def stream(self, messages, options):
        raise TypeError("it is extinct")
        yield

    async def list_models(self):
        raise TypeError("there are none")


class Zoo(Plugin):
    name = "zoo"
    environ = ("HOME",)

    async def activate(self, ctx):
        structlog.get_logger().error("the zoo opens")
        word = ctx.config["word"]
        ctx.providers.add_factory("parrot", lambda config: Bird(config.id, word), first_model="grey")
        ctx.providers.register(Bird("owl", word))
        ctx.providers.add_factory("dodo", lambda config: Dodo(config.id, word), first_model="last")
        ctx.agents.register_source(Path(ctx.environ["HOME"]) / "keepers")


plugin = Zoo()
"""
LEFT_OUT = "nowhere.py failed to load: plugin "


def settle(home: Path, url: str, agent: str = "keeper") -> None:
    (home / "config").mkdir(exist_ok=True)
    (home / "config/zoo.py").write_text(ZOO)
    (home / "keepers").mkdir(exist_ok=True)
    (home / "keepers/keeper.md").write_text("---\nmodel: owl/grey\n---\nFeed them.")
    (home / "config").mkdir(exist_ok=True)
    (home / "config/trunkline.toml").write_text(SETTINGS.format(home=home, url=url, agent=agent))


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeModels]:
    """A home with a plugin that brings two providers and an agent, and with two servers."""
    async with FakeModels() as server:
        settle(tmp_path, server.openai_url)
        yield server


async def run(home: Path, *args: str, **environ: str) -> CompletedProcess[str]:
    return await asyncio.to_thread(trunkline, *args, home=home, TRUNKLINE_SERVER__PORT="0", **environ)


async def told(home: Path, *args: str, by: str) -> dict[str, dict[str, Any]]:
    """What a command tells as JSON, by the name of each; that a plugin is missing it tells beside it."""
    done = await run(home, *args, "--json")
    assert LEFT_OUT in done.stderr
    assert "the zoo opens" not in done.stdout
    return {each[by]: each for each in json.loads(done.stdout)}


async def test_the_list_of_providers_has_them(tmp_path: Path, fake: FakeModels) -> None:
    found = await told(tmp_path, "providers", "list", by="id")
    plugins = {name: each["plugin"] for name, each in found.items() if each["plugin"]}
    assert plugins == dict.fromkeys(("parrot", "owl", "second", "dodo"), "zoo.py")
    for name in ("parrot", "owl", "second"):
        assert (found[name]["endpoint"], found[name]["protocol"]) == ("in this process", "own")
        assert found[name]["problem"] == ""
    for name in ("desk", "shop"):
        assert (found[name]["endpoint"], found[name]["protocol"]) == (fake.openai_url, "Chat Completions")
    assert "anthropic" in found
    shown = (await run(tmp_path, "providers", "list")).stdout
    [line] = [line.split() for line in shown.splitlines() if line.startswith(" owl ")]
    assert line[:3] == ["owl", "zoo.py", "Owl"]


async def test_all_that_are_set_up_are_tried(tmp_path: Path, fake: FakeModels) -> None:
    found = await told(tmp_path, "providers", "test", by="provider")
    assert {name: each["ok"] for name, each in found.items()} == {
        "desk": True,
        "shop": True,
        "second": True,
        "parrot": True,
        "owl": True,
        "dodo": False,
    }
    assert (found["dodo"]["error"], found["dodo"]["detail"]) == ("PluginError", "TypeError: it is extinct")
    assert "the plugin of the provider" in found["dodo"]["way_out"]
    assert found["parrot"]["model"] == "grey"
    done = await run(tmp_path, "providers", "test", "owl/grey", "nobody", "--json")
    assert (done.returncode, [each["ok"] for each in json.loads(done.stdout)]) == (1, [True, False])


async def test_their_models_are_listed(tmp_path: Path, fake: FakeModels) -> None:
    found = await told(tmp_path, "models", "list", by="model")
    assert {"parrot/grey", "owl/grey", "second/grey", "desk/fake-small", "shop/fake-large"} <= set(found)
    done = await run(tmp_path, "models", "list")
    assert "dodo is unreachable: TypeError: there are none" in done.stderr
    about = json.loads((await run(tmp_path, "models", "info", "parrot/grey", "--json")).stdout)
    assert (about["endpoint"], about["problem"]) == ("in this process", "")


async def test_the_doctor_tells_of_them(tmp_path: Path, fake: FakeModels) -> None:
    done = await run(tmp_path, "doctor", "--json")
    found = {each["name"]: (each["status"], each["detail"]) for each in json.loads(done.stdout)}
    assert found["plugin zoo.py"] == ("ok", "loads, with providers owl, parrot, dodo")
    assert found[f"plugin {tmp_path}/nowhere.py"][0] == "fail"
    assert found["provider parrot"] == ("ok", "Parrot, in this process, from the plugin zoo.py")
    assert found["provider shop"] == ("ok", f"OpenAI-compatible, {fake.openai_url}")
    assert found["model"] == ("ok", "parrot/grey at in this process")
    assert found["agent keeper"] == ("ok", "owl/grey")
    assert "agents of channels" not in found


async def test_an_agent_of_a_channel_may_be_a_plugins(tmp_path: Path, fake: FakeModels) -> None:
    agents = await told(tmp_path, "agents", "list", by="name")
    assert agents["keeper"]["channels"] == ["websocket"]
    assert (await run(tmp_path, "config", "check")).returncode == 0
    settle(tmp_path, fake.openai_url, "keper")
    said = 'channels.websocket.agent = "keper" is not an agent; did you mean keeper? known: main, general'
    done = await run(tmp_path, "run")
    assert (done.returncode, said in done.stderr) == (2, True)
    found = json.loads((await run(tmp_path, "doctor", "--json")).stdout)
    [wrong] = [each for each in found if each["name"] == "agents of channels"]
    assert (wrong["status"], said in wrong["detail"]) == ("fail", True)
    checked = await run(tmp_path, "config", "check")
    assert (checked.returncode, "unless a plugin adds it" in checked.stderr) == (0, True)
    (tmp_path / "config/trunkline.toml").write_text('[channels.websocket]\nagent = "keper"\n')
    checked = await run(tmp_path, "config", "check")
    assert (checked.returncode, '"keper" is not an agent; known: main' in checked.stderr) == (2, True)


async def test_the_keys_of_plugin_providers_are_listed(tmp_path: Path, fake: FakeModels) -> None:
    done = await run(tmp_path, "auth", "list", "--json", PARROT_API_KEY="polly-wants-a-cracker")
    places = {each["provider"]: each["place"] for each in json.loads(done.stdout)}
    assert places["parrot"] == "PARROT_API_KEY"
    login = await run(tmp_path, "auth", "login", "nobody", "--key-stdin", "--no-check")
    assert login.returncode != 0
