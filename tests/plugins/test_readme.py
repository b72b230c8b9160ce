"""The plugins' README: its programs run, and do what it says of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import structs
from pydantic import BaseModel

from gateway import Capabilities, ErrorPart, Plugin, ToolResultPart
from gateway.app import Gateway
from gateway.channel import Address
from gateway.contract.deltas import TextDelta
from gateway.events import BusEvent
from gateway.extensions.admission.manifest import Admitted, parse_manifest
from gateway.extensions.confined.inprocess import InProcess
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.extensions.hooks import HOOKS
from gateway.extensions.loader import load_plugin
from gateway.session.frames import MessageFrame
from gateway.settings import PluginSettings, load_settings
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.served import serving
from plugins.shell import Shell

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "plugins/README.md").read_text(encoding="utf-8")
CHANNELS = ROOT / "channels/README.md"
PROGRAMS = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL))


def saved(name: str, folder: Path) -> Path:
    """A program of the README as a file."""
    file = folder / f"{name}.py"
    file.write_text(PROGRAMS[file.name], encoding="utf-8")
    return file


def plugin(name: str, folder: Path) -> Plugin:
    """The plugin of a program, loaded as settings would have it."""
    return load_plugin(str(saved(name, folder)))


def test_every_program_is_named_and_tried_here() -> None:
    assert TEXT.count("```python") == len(PROGRAMS)
    tried = {f"{name}.py" for name in re.findall(r'(?:plugin|saved)\("(\w+)"', Path(__file__).read_text())}
    assert set(PROGRAMS) == tried


async def test_the_first_confined_plugin_blocks_what_it_says(tmp_path: Path) -> None:
    [manifest] = re.findall(r"```yaml\n(api: 1\n.*?)```", TEXT, re.DOTALL)
    folder = saved("main", tmp_path).parent
    parsed = parse_manifest(manifest.encode())
    admitted = Admitted(parsed, folder, "sha256:readme", frozenset(parsed.capabilities.grants()))
    confined = ConfinedPlugin(
        admitted,
        PluginSettings(),
        _NoCalls(),
        lambda serve, on_start: InProcess(admitted, serve, on_start),
        lambda grant: grant in admitted.grants,
    )
    shell = {"shell": True, "roots": [str(tmp_path)]}
    async with chatting(tmp_path / "data", confined, Shell(), plugins={"shell": shell}) as chat:
        chat.model.then(Reply((Use("shell", '{"argv": ["rm", "-rf", "x"]}'),), "tools"))
        [result] = [part for part in (await chat.say("go")).parts if isinstance(part, ToolResultPart)]
    assert result.output == "Error: blocked by the plugin 'no-deletes': nothing is deleted here"


class _NoCalls:
    async def serve(self, method: str, _params: Any) -> Any:
        raise AssertionError(method)

    def working_in(self, _session: str) -> nullcontext[None]:
        return nullcontext()


def test_every_program_has_the_types_of_the_contract(tmp_path: Path) -> None:
    for name in PROGRAMS:
        saved(name.removesuffix(".py"), tmp_path)
    channel = "\n\n".join(re.findall(r"```python\n(.*?)```", CHANNELS.read_text(), re.DOTALL))
    (tmp_path / "pigeon.py").write_text(channel, encoding="utf-8")
    paths = [str(ROOT), str(ROOT / "gateway/extensions/child")]
    config = {"typeCheckingMode": "standard", "extraPaths": paths, "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    checker = Path(sys.executable).with_name("basedpyright")
    command = [str(checker), "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "0 errors" in done.stdout, done.stdout


def test_what_is_named_is_exported() -> None:
    doors = [
        import_module(name)
        for name in ("gateway", "gateway.api", "gateway.channel", "gateway.events", "gateway.provider_http")
    ]
    public = {name for door in doors for name in door.__all__}
    named = re.findall(r"^from gateway import \(?(.*?)\)?$", TEXT.replace("\n    ", " "), re.MULTILINE)
    assert len(named) == len(PROGRAMS) - 2
    words = {word for line in named for word in re.findall(r"\w+", line)}
    assert words <= set(doors[0].__all__)
    assert set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", TEXT)) <= {
        *public,
        "Makefile",
        "FakeModels",
        "CapabilityDenied",
    }


@pytest.mark.parametrize("file", sorted((ROOT / "plugins").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_a_shipped_plugin_is_listed_with_its_settings(file: Path) -> None:
    made = load_plugin(file.stem)
    assert made.name == file.stem
    [row] = [line for line in TEXT.splitlines() if line.startswith(f"| `{file.stem}` |")]
    models = [value for value in vars(import_module(f"plugins.{file.stem}")).values() if is_model(value)]
    settings = {field for model in models for field in model.model_fields}
    assert sorted(field for field in settings if f"`{field}" not in row) == []
    hooks = {hook for hook in HOOKS if getattr(type(made), hook) is not getattr(Plugin, hook)}
    assert sorted(hook for hook in hooks if f"`{hook}`" not in row) == []


async def test_the_settings_of_the_shipped_plugins_are_valid(tmp_path: Path) -> None:
    [text] = [text for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL) if "local_time" in text]
    tables = tomllib.loads(text)["plugins"]
    made = [load_plugin(name) for name in tables.pop("enabled")]
    async with chatting(tmp_path, *made, plugins=tables) as chat:
        await chat.say("hi")
        assert "(Europe/Oslo, UTC+" in chat.model.calls[0].options.system_prompt
    rules: Any = made[1]
    assert rules._rules["no_deletes"].forbids({"command": "cd notes; rm -r ."})


def is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel


async def test_the_notebook_writes_down_and_shows(tmp_path: Path) -> None:
    note = Reply((Use("write_down", '{"note": "buy milk"}'),), "tools")
    async with chatting(tmp_path, plugin("notebook", tmp_path), plugins={"notebook": {"most": 1}}) as chat:
        chat.model.then(note, Reply((Say("Noted."),)), note, Reply((Say("It is full."),)))
        await chat.say("Remember the milk.")
        results = [p for p in (await chat.say("And again.")).parts if isinstance(p, ToolResultPart)]
        assert [(r.output, r.is_error) for r in results] == [("Error: the notebook is full", True)]
        assert (await chat.say("/notes")).text == "- buy milk"
        assert (await chat.say("/notes", "other")).text == "Nothing yet."


async def test_the_settings_enable_it(tmp_path: Path) -> None:
    saved("notebook", tmp_path)
    block = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)[0]
    listed = re.search(r"or (\{.*\})", block)
    assert listed is not None
    tomllib.loads(f"enabled = [{listed[1]}]")
    for text in (block, f"[plugins]\nenabled = [{listed[1].replace('notebook', './notebook.py')}]\n"):
        (tmp_path / "own.toml").write_text(text.replace('["notebook"]', '["./notebook.py"]'))
        flags = {"data_dir": str(tmp_path), "model": "demo/demo"}
        settings = load_settings(tmp_path / "own.toml", flags=flags, environ={}, cwd=tmp_path)
        gateway = Gateway(settings, resolve_plugin=lambda name: load_plugin(str(tmp_path / name)))
        async with gateway.running():
            notebook: Any = gateway.registry.get("notebook")
            assert notebook._most == 20


async def test_the_careful_one_guards_and_introduces(tmp_path: Path) -> None:
    settings = {"plugins": {"careful": {"guarded": ["calculator"]}}}
    async with chatting(tmp_path, plugin("careful", tmp_path), **settings) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1"}'),), "tools"))
        [result] = [p for p in (await chat.say("1?")).parts if isinstance(p, ToolResultPart)]
        assert (result.output, result.is_error) == ("Error: calculator is guarded", True)
        assert chat.model.calls[0].options.system_prompt.endswith("You talk to ada.")


async def test_the_foreman_shows_what_works_and_tells_of_stops(tmp_path: Path) -> None:
    async with chatting(tmp_path, plugin("foreman", tmp_path)) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        shown: list[list[str]] = []
        contributions = chat.gateway.registry.contributions

        def changed() -> None:
            said = [segment.text for segment in contributions.status.get("foreman", ())]
            if said or shown:
                shown.extend([said] if shown[-1:] != [said] else [])

        contributions.on_change("status", changed)
        use = Use("calculator", '{"expression": "1"}')
        chat.model.then(Reply((use,), "tools"), Reply((Say("On "), Gate(asyncio.Event()))))
        await chat.accept("go")
        await watcher.until(lambda frame: isinstance(frame, TextDelta) and frame.content == "On ")
        await chat.say("/stop")
        await chat.say("hm")
        assert shown == [["1 at work"], []]
        assert chat.model.calls[-1].messages[-1].text == "(I stopped your last answer.)"


async def test_the_tally_counts_announces_and_is_asked(tmp_path: Path) -> None:
    made: Any = plugin("tally", tmp_path)
    async with serving(tmp_path, made, plugins={"tally": {"limit": 2}}) as served, served.socket() as client:
        reached: list[BusEvent] = []
        served.gateway.events.subscribe_all(lambda event: reached.append(event))
        for text in ("one", "two", "three"):
            await client.say(text)
            await client.until("complete")
        assert await served.ask("GET", "/api/plugins/tally/answers/websocket") == (
            200,
            {"channel": "websocket", "answers": 3},
        )
        async with served.http.get(f"{served.url}/metrics") as response:
            text = await response.text()
    assert 'trunkline_plugin_tally_answers_total{channel="websocket"} 3.0' in text
    named = [event for event in reached if event.event_name() == "tally.limit"]
    assert [msgspec.to_builtins(event) for event in named] == [
        {"name": "tally.limit", "channel": "websocket"}
    ]
    assert made.ready


async def test_the_counter_counts_in_one_message(tmp_path: Path) -> None:
    async with chatting(tmp_path, plugin("counter", tmp_path), channels={"websocket": {}}) as chat:
        address = Address("websocket", "", "s")
        accepted = await chat.host.accept("websocket", structs.replace(written("/count"), address=address))
        assert accepted.session == "s"
        watcher = await chat.watch()
        await watcher.until(lambda f: isinstance(f, MessageFrame) and f.message.text == "Count 1: 2")
        counted = [frame for frame in watcher.frames if isinstance(frame, MessageFrame)]
        assert len({frame.message.id for frame in counted if "Count" in frame.message.text}) == 1


async def test_the_standup_keeps_what_its_user_answers(tmp_path: Path) -> None:
    standup: Any = plugin("standup", tmp_path)
    async with chatting(tmp_path, standup, channels={"websocket": {}}) as chat:
        address = Address("websocket", "", "s")
        await chat.host.accept("websocket", structs.replace(written("/standup"), address=address))
        assert (await chat.decide("good")).title == "How was the day?"
        days = standup._ctx.table("days")
        async with asyncio.timeout(60):
            while not await days.items():
                await asyncio.sleep(0.01)
        assert [day for _, day in await days.items()] == ["good"]


async def test_the_thorough_one_asks_twice(tmp_path: Path) -> None:
    async with chatting(tmp_path, plugin("twice", tmp_path)) as chat:
        chat.model.then(Reply((Say("Well."),)), Reply((Say("Better."),)))
        assert (await chat.say("hi")).text == "Well.\n\nBetter."
        assert [m.text for m in chat.model.calls[1].messages] == ["hi", "Well.", "Now say it better."]


async def test_the_parrot_answers_as_a_model(tmp_path: Path) -> None:
    async with chatting(tmp_path, plugin("parrot", tmp_path), model="parrot/grey") as chat:
        answer = await chat.say("pretty polly")
        assert (answer.text, answer.metadata.provider, answer.metadata.model) == (
            "pretty polly ",
            "parrot",
            "grey",
        )
        provider = await chat.gateway.providers.ready("parrot")
        assert provider.capabilities == Capabilities(tools=False, images=False)
        assert [model.id for model in await provider.list_models()] == ["grey"]


async def test_the_provider_over_http_streams_its_answer(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def chat_(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        for word in ("pretty ", "polly"):
            await answer.write(b'{"message":{"role":"assistant","content":"%b"}}\n' % word.encode())
        await answer.write(b'{"message":{"content":""},"done":true,"prompt_eval_count":5,"eval_count":2}\n')
        return answer

    async def tags(_request: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": "llama3.2", "size": 1}]})

    app = web.Application()
    app.add_routes([web.post("/api/chat", chat_), web.get("/api/tags", tags)])
    async with TestServer(app) as server:
        settings = {"providers": {"ollama_native": {"base_url": str(server.make_url(""))}}}
        made = plugin("ollama_native", tmp_path)
        async with chatting(tmp_path, made, model="ollama_native/llama3.2", **settings) as chat:
            answer = await chat.say("hello?")
            provider = await chat.gateway.providers.ready("ollama_native")
            assert [model.id for model in await provider.list_models()] == ["llama3.2"]
    assert answer.text == "pretty polly"
    assert (answer.metadata.input_tokens, answer.metadata.output_tokens) == (5, 2)
    assert (asked[0]["model"], asked[0]["messages"][-1]) == (
        "llama3.2",
        {"role": "user", "content": "hello?"},
    )


def test_the_tests_of_the_notebook_pass(tmp_path: Path) -> None:
    saved("notebook", tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "asyncio_mode=auto",
        str(saved("test_notebook", tmp_path)),
    ]
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("hook", HOOKS)
async def test_the_table_of_hooks_is_right_about_what_raises(tmp_path: Path, hook: str) -> None:
    class Raising(Plugin):
        name = "raising"

    def broken(*_args: Any) -> None:
        raise ValueError("no")

    setattr(Raising, hook, broken)
    async with chatting(tmp_path, Raising()) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1"}'),), "tools"))
        answer = await chat.say("hi")
    failed = any(isinstance(part, ErrorPart) for part in answer.parts)
    blocked = any(isinstance(part, ToolResultPart) and part.is_error for part in answer.parts)
    outcome = (
        "the turn ends with the error" if failed else "the call is blocked" if blocked else "logged, skipped"
    )
    [row] = [line for line in TEXT.splitlines() if line.startswith(f"| `{hook}(")]
    assert row.endswith(f"| {outcome} |")
