"""The 24 events, as a plugin in a confined process receives them. Each test has the id of its row."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, PluginContext, Tool, ToolContext, tool_from
from gateway.contract.errors import ServerFailedError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Capabilities
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.events import DECIDING, EVENTS
from gateway.settings import Settings
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import serving
from plugins.cli_backends import CliBackends
from tests.gateway.cli.processes import trunkline
from tests.plugins.cli_backends.pretend import program

from .conftest import RecordingBroker, Start, Write

pytestmark = pytest.mark.slow

OBSERVED = tuple(name for name in EVENTS if name not in DECIDING)

OBSERVING = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    async def seen(event):
        assert ctx.session.id == event.session_id
        await ctx.kv.set(event.event, dict(event))
    return {"on": dict.fromkeys(EVENTS, seen)}
"""


class Seen(RecordingBroker):
    """Keeps the payloads that the plugin saw."""

    def of(self, name: str) -> list[dict[str, Any]]:
        return [
            params["value"] for method, params in self.calls if method == "kv.set" and params["key"] == name
        ]

    async def first(self, name: str) -> dict[str, Any]:
        """Return the first payload of an event, without its envelope."""
        await self.until(lambda: bool(self.of(name)))
        payload = dict(self.of(name)[0])
        assert payload.pop("event") == name
        assert payload.pop("timestamp") > 1_700_000_000_000
        return payload


class Observe:
    """Makes observers: plugins in confined processes that report all events that they may see."""

    def __init__(self, write: Write, start: Start) -> None:
        self.seen = Seen()
        self._write, self._start = write, start

    def __call__(self, *events: str, name: str = "guarded", **needs: Any) -> Any:
        events = events or OBSERVED
        code = OBSERVING.replace("EVENTS", repr(events))
        capabilities = Capabilities(**needs)
        return self._write(code, name, events=events, broker=self.seen, needs=capabilities, start=self._start)


@pytest.fixture
def observe(write: Write, confined: Start) -> Observe:
    return Observe(write, confined)


def test_001_01_there_are_24_typed_events() -> None:
    assert len(EVENTS) == 24
    assert all(kind.event_name() == name for name, kind in EVENTS.items())


async def test_001_04_sessions_are_reported_from_their_creation_to_idle_and_resumed(
    tmp_path: Path, observe: Observe
) -> None:
    seen = observe.seen
    async with chatting(tmp_path, observe()) as chat:
        await chat.say("hello")
        created = await seen.first("session.created")
        assert created == {"session_id": "s", "channel": "test", "owner": "ada"}
        idle = await seen.first("session.idle")
        assert idle == {"session_id": "s", "channel": "test", "owner": "ada", "turns": 1}
        assert not seen.of("session.resumed")
    async with chatting(tmp_path, observe(name="again")) as chat:
        await chat.say("again")
        resumed = await seen.first("session.resumed")
        assert resumed == {"session_id": "s", "channel": "test", "owner": "ada", "messages": 2}


async def test_001_04_session_completed_is_another_name_of_session_idle(
    tmp_path: Path, observe: Observe
) -> None:
    seen = observe.seen
    async with chatting(tmp_path, observe("session.completed")) as chat:
        await chat.say("hello")
        assert (await seen.first("session.completed"))["turns"] == 1


async def test_001_04_a_failed_turn_is_reported_with_the_name_of_its_error(
    tmp_path: Path, observe: Observe
) -> None:
    seen = observe.seen
    async with chatting(tmp_path, observe()) as chat:
        chat.model.then(ServerFailedError("the model broke", provider="script"))
        await chat.say("hello")
        error = await seen.first("session.error")
        assert (error["error"], error["message"]) == ("ServerFailedError", "the model broke")
        failed = await seen.first("agent.failed")
        assert failed["outcome"] == "ServerFailedError"


async def test_001_02_tool_calls_are_reported_before_and_after(tmp_path: Path, observe: Observe) -> None:
    seen = observe.seen
    plugin = observe("tool.execute.before", "tool.execute.after", tools="block")
    async with chatting(tmp_path, plugin) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1 + 1"}'),), "tools"))
        await chat.say("go")
        before, after = await seen.first("tool.execute.before"), await seen.first("tool.execute.after")
    assert before.pop("call_id") == after.pop("call_id") != ""
    assert before == {"session_id": "s", "tool": "calculator", "args": {"expression": "1 + 1"}}
    assert after.pop("duration_ms") >= 0
    assert after == {**before, "result": "2", "is_error": False}


async def test_001_03_permissions_are_reported_when_asked_and_replied(
    tmp_path: Path, observe: Observe
) -> None:
    seen = observe.seen
    plugin = observe("permission.ask", "permission.replied", tools="decide")
    limits = {"approval_timeout_ms": 20}
    async with chatting(tmp_path, plugin, permissions={"calculator": "ask"}, limits=limits) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1 + 1"}'),), "tools"))
        await chat.say("go")
        ask, replied = await seen.first("permission.ask"), await seen.first("permission.replied")
    assert ask == {
        "session_id": "s",
        "tool": "calculator",
        "command": "1 + 1",
        "args": {"expression": "1 + 1"},
        "user": "ada",
        "role": "user",
    }
    assert replied == {**ask, "outcome": "timeout", "by": ""}


async def test_001_04_a_compaction_is_reported_when_it_begins_and_ends(
    tmp_path: Path, observe: Observe
) -> None:
    seen = observe.seen
    plugin = observe("session.compacting", "session.compacted")
    async with chatting(tmp_path, plugin) as chat:
        for _ in range(2):
            await chat.say("word " * 200)
        chat.model.then(Reply((Say("A summary."),)))
        await chat.say("/compact keep names")
        compacting = await seen.first("session.compacting")
        compacted = await seen.first("session.compacted")
    assert compacting == {"session_id": "s", "trigger": "manual", "instructions": "keep names"}
    assert compacted.pop("before") > compacted.pop("after") > 0
    assert compacted.pop("summary")
    assert compacted == {"session_id": "s", "trigger": "manual", "messages": 4}


async def test_content_is_left_out_for_a_plugin_that_may_not_see_it(tmp_path: Path, observe: Observe) -> None:
    seen = observe.seen
    async with chatting(tmp_path, observe()) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1 + 1"}'),), "tools"))
        await chat.say("private words")
        await seen.first("tool.execute.after")
        await seen.until(lambda: len(seen.of("message.added")) == 2)
    assert "private" not in str(seen.calls)
    assert "1 + 1" not in str(seen.calls)


class Announcer(Plugin):
    """A plugin that writes into chats by itself."""

    name = "announcer"

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx


async def test_001_05_messages_are_reported_when_added_updated_and_removed(
    tmp_path: Path, observe: Observe
) -> None:
    seen, announcer = observe.seen, Announcer()
    async with chatting(tmp_path, observe(messages="read"), announcer) as chat:
        await chat.say("hello")
        await seen.until(lambda: len(seen.of("message.added")) == 2)
        added = [(each["role"], each["text"]) for each in seen.of("message.added")]
        assert added == [("user", "hello"), ("assistant", "You said: hello")]
        session = await chat.gateway.parts.sessions.find("s")
        await announcer.ctx.announce(session.address, "Tea is ready.", "tea")
        # A text that is replaced before its chat has it is never seen.
        await seen.until(lambda: len(seen.of("message.added")) == 3)
        await announcer.ctx.announce(session.address, "Tea is cold.", "tea")
        updated = await seen.first("message.updated")
        assert (updated["role"], updated["text"]) == ("assistant", "Tea is cold.")
        assert updated["message_id"] == seen.of("message.added")[2]["message_id"]
        await chat.host.submit(written("/undo"))
        await seen.until(lambda: len(seen.of("message.removed")) >= 2)
        removed = [(each["role"], each["text"]) for each in seen.of("message.removed")]
        assert removed[:2] == added


class Delegating(Plugin):
    """A plugin with a tool that starts a nested run."""

    name = "delegating"

    def tools(self) -> list[Tool]:
        async def delegate(context: ToolContext) -> str:
            """Delegate."""
            return await context.run_nested("count to three")

        return [tool_from(delegate)]


async def test_001_06_agents_and_their_nested_runs_are_reported(tmp_path: Path, observe: Observe) -> None:
    seen = observe.seen
    async with chatting(tmp_path, observe(), Delegating()) as chat:
        delegate = Reply((Use("delegate", "{}"),), "tools")
        chat.model.then(delegate, Reply((Say("one two three"),)), Reply((Say("done"),)))
        await chat.say("go")
        await seen.until(lambda: len(seen.of("agent.completed")) == 2)
    created = await seen.first("agent.created")
    assert created["agent"] == {"role": "sub", "model": "script/one"}
    assert (created["session_id"], created["parent"]) == ("s", "s")
    roles = [each["agent"]["role"] for each in seen.of("agent.started")]
    assert roles == ["main", "sub"]
    assert [each["outcome"] for each in seen.of("agent.completed")] == ["end_turn", "end_turn"]


def use(tool: str, **arguments: Any) -> Reply:
    return Reply((Use(tool, json.dumps(arguments)),), "tools")


async def test_001_07_files_that_tools_change_are_reported_without_their_content(
    tmp_path: Path, observe: Observe
) -> None:
    seen, root = observe.seen, tmp_path / "root"
    root.mkdir()
    settings = {"plugins": {"enabled": ["files"], "files": {"roots": [str(root)], "writable": True}}}
    async with chatting(tmp_path, observe(messages="read"), **settings) as chat:
        delete = "*** Begin Patch\n*** Delete File: a.py\n*** End Patch"
        chat.model.then(use("write", path="a.py", content="private"), use("patch", patch=delete))
        await chat.say("go")
        assert await seen.first("file.modified") == {
            "session_id": "s",
            "path": f"{root}/a.py",
            "by": "write",
        }
        assert await seen.first("file.deleted") == {"session_id": "s", "path": f"{root}/a.py", "by": "patch"}


async def test_001_07_files_that_undo_and_redo_change_are_reported(tmp_path: Path, observe: Observe) -> None:
    seen, root = observe.seen, tmp_path / "root"
    root.mkdir()
    settings = {"plugins": {"enabled": ["files"], "files": {"roots": [str(root)], "writable": True}}}
    async with chatting(tmp_path, observe(), **settings) as chat:
        chat.model.then(use("write", path="a", content="text"))
        await chat.say("go")
        await chat.host.submit(written("/undo"))
        assert await seen.first("file.deleted") == {"session_id": "s", "path": f"{root}/a", "by": "undo"}
        await chat.host.submit(written("/redo"))
        await seen.until(lambda: len(seen.of("file.modified")) == 2)
        assert [each["by"] for each in seen.of("file.modified")] == ["write", "redo"]


CHANGES = """
prompt()
open("new.txt", "w").write("new")
open("a\\tb", "w").write("odd")
os.remove("old.txt")
say("changed")
"""


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("done()", "ok"),
        ('out(type="result", is_error=True, result="overloaded")', "failed"),
        ("time.sleep(600)", "stopped"),
    ],
)
async def test_001_07_files_that_a_cli_backend_changes_are_reported(
    tmp_path: Path, observe: Observe, end: str, outcome: str
) -> None:
    seen, folder = observe.seen, tmp_path / "project"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(folder))
    assert await git.wait() == 0
    binary = str(program(tmp_path / "bin", CHANGES + end, "claude-code"))
    backend = {"binary": binary, "env": {"PATH": os.environ.get("PATH", os.defpath)}}
    settings = {"plugins": {"cli_backends": {"plugins": {"claude-code": backend}}}}
    settings["plugins"]["cli_backends"]["working_directory"] = str(folder)
    model = "claude-code/default"
    async with chatting(tmp_path / "data", CliBackends(), observe(), model=model, **settings) as chat:
        answer_id = await chat.accept("go")
        if outcome == "stopped":
            watcher = await chat.watch()
            await watcher.until(lambda frame: "changed" in str(getattr(frame, "content", "")))
            await chat.host.abort("s")
        await chat.answer(answer_id)
        await seen.until(lambda: len(seen.of("file.modified")) == 2)
        deleted = await seen.first("file.deleted")
        modified = {(each["session_id"], each["path"], each["by"]) for each in seen.of("file.modified")}
    assert deleted == {"session_id": "s", "path": f"{folder}/old.txt", "by": "claude-code"}
    assert modified == {("s", f"{folder}/{name}", "claude-code") for name in ("new.txt", "a\tb")}


WRITER = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    async def change(args, call):
        await ctx.fs.write("made.txt", "text")
        await ctx.exec("tee", ["written.txt"], input="text")
        await ctx.fs.delete("made.txt")
        return "changed"

    async def seen(event):
        await ctx.kv.set("own event", event.path)

    return {"commands": [{"name": "change", "description": "C.", "execute": change}],
            "on": {"file.modified": seen, "file.deleted": seen}}
"""
WRITER_MANIFEST = """
api: 1
name: writer
version: 1.0.0
commands: [change]
events: [file.modified, file.deleted]
capabilities:
  filesystem: {write: true, delete: true, roots: [workspace]}
  exec: {enabled: true, allowlist: ["tee *"]}
  storage_mb: 1
"""


async def test_001_07_files_that_a_plugin_changes_are_reported_to_the_others(
    tmp_path: Path, observe: Observe
) -> None:
    seen, folder = observe.seen, tmp_path / "writer"
    folder.mkdir()
    (folder / "plugin.yml").write_text(WRITER_MANIFEST)
    (folder / "main.py").write_text(WRITER)
    (tmp_path / "work").mkdir()
    settings = {"plugins": {"enabled": [str(folder)]}}
    with chdir(tmp_path / "work"):
        admission = Admission(Settings(data_dir=tmp_path / "data", **settings))
        declared = tuple(admission.find(str(folder)).manifest.capabilities.grants())
        Installer(admission, {}).approve(str(folder), declared, "cli:test")
        async with chatting(tmp_path / "data", observe(), **settings) as chat:
            assert (await chat.say("/change")).text == "changed"
            deleted = await seen.first("file.deleted")
            await seen.until(lambda: len(seen.of("file.modified")) == 2)
            modified = [(each["path"], each["by"]) for each in seen.of("file.modified")]
            actions = chat.gateway.parts.actions
            await actions.flush()
            assert not [each for each in await actions.latest("writer") if each.action == "storage"], (
                "a plugin gets no events of what it does itself, or it would go on for ever"
            )
    work = tmp_path / "work"
    assert modified == [(f"{work}/{name}", "plugin:writer") for name in ("made.txt", "written.txt")]
    assert deleted == {"session_id": "s", "path": f"{work}/made.txt", "by": "plugin:writer"}


TOKEN = "a-secret-token-of-the-gateway-0123456789"


async def test_001_08_slash_commands_are_reported_with_secrets_masked(
    tmp_path: Path, observe: Observe
) -> None:
    async with chatting(tmp_path, observe(), server={"token": TOKEN}) as chat:
        await chat.say(f"/help {TOKEN}")
        executed = await observe.seen.first("slash.command.executed")
    assert executed == {"session_id": "s", "command": "help", "args": "**********", "ok": True}


async def test_001_08_commands_of_the_cli_are_reported_with_secrets_masked(
    tmp_path: Path, observe: Observe
) -> None:
    seen, home = observe.seen, tmp_path / "home"
    (home / "config").mkdir(parents=True)
    async with serving(home / "data", observe(), server={"token": TOKEN}) as served:
        port = served.url.rsplit(":", 1)[1]
        settings = f'[server]\ntoken = "{TOKEN}"\nport = {port}\n'
        (home / "config/trunkline.toml").write_text(settings)

        async def run(*words: str) -> int:
            return (await asyncio.to_thread(trunkline, *words, home=home)).returncode

        assert await run("channels", "status", "--json") == 0
        await seen.until(lambda: len(seen.of("command.executed")) == 1)
        assert await run("version") == 0
        # On a busy machine the command may not find the gateway, and look into the database.
        async with asyncio.timeout(60):
            while len(seen.of("command.executed")) == 1:
                assert await run("pair", "approve", f"{TOKEN} postgresql://me:hidden@db/x") != 0
        first, second, *_ = seen.of("command.executed")
    assert {**first, "timestamp": 0} == {
        "event": "command.executed",
        "timestamp": 0,
        "session_id": "",
        "command": "channels status",
        "args": "--json",
        "ok": True,
    }
    assert (second["command"], second["ok"]) == ("pair approve", False)
    assert TOKEN not in second["args"]
    assert "hidden" not in second["args"]
    assert "@db/x" in second["args"]


PRICED = {"models": {"script/one": {"input_price": 1000, "output_price": 1000}}}


async def test_001_09_a_budget_that_refuses_a_call_is_reported(tmp_path: Path, observe: Observe) -> None:
    seen = observe.seen
    budgets = {"all": {"scope": "all", "per": "ever", "stop": "0.08"}}
    async with chatting(tmp_path, observe(), **PRICED, budgets=budgets) as chat:
        await chat.say("hello")
        exceeded = await seen.first("budget.exceeded")
    assert exceeded.pop("spent") >= 0
    assert exceeded == {"session_id": "s", "budget": "all", "limit": 0.08}


async def test_001_09_a_session_reports_its_cost_at_most_twice_a_second(
    tmp_path: Path, observe: Observe
) -> None:
    seen = observe.seen
    async with chatting(tmp_path, observe(), **PRICED) as chat:
        for _ in range(5):
            await chat.say("hello")
        await seen.until(lambda: len(seen.of("cost.updated")) == 2)
        costs = seen.of("cost.updated")
    assert (costs[0]["provider"], costs[0]["model"]) == ("script", "one")
    assert costs[1]["tokens"] == 4 * costs[0]["tokens"]
    assert costs[1]["totalCost"] == pytest.approx(5 * costs[0]["totalCost"])
    assert costs[1]["timestamp"] - costs[0]["timestamp"] >= 499


async def test_001_34_nothing_is_built_without_a_subscriber(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hello")
        wanted = [name for name, kind in EVENTS.items() if chat.gateway.events.wants(kind)]
    assert wanted == []


async def test_an_observer_that_fails_disturbs_nothing(tmp_path: Path, write: Write, confined: Start) -> None:
    code = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    async def seen(event):
        await ctx.kv.set("called", 1)
        raise ValueError("observer broke")
    return {"on": {"session.idle": seen, "session.created": seen}}
"""
    seen = Seen()
    plugin = write(code, events=("session.idle", "session.created"), broker=seen, start=confined)
    async with chatting(tmp_path, plugin) as chat:
        assert (await chat.say("hello")).text == "You said: hello"
        await seen.until(lambda: len(seen.of("called")) == 2)
    assert plugin.process.record.deaths == 0
