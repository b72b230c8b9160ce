"""The 24 events, as a confined plugin observes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, Tool, ToolContext, tool_from
from gateway.contract.errors import ServerFailedError
from gateway.events import CommandExecuted, FileDeleted, FileModified
from gateway.extensions.admission.capabilities import Capabilities
from gateway.extensions.confined.events import DECIDING, EVENTS
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Reply, Say, Use

from .conftest import RecordingBroker, Write

OBSERVED = tuple(name for name in EVENTS if name not in DECIDING)

OBSERVING = f"""
from trunkline_plugin import plugin

@plugin
def f(ctx):
    async def seen(event):
        assert ctx.session.id == event.session_id
        await ctx.kv.set(event.event, dict(event))
    return {{"on": dict.fromkeys({OBSERVED!r}, seen)}}
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


def observer(write: Write, seen: Seen, **needs: Any) -> Any:
    return write(OBSERVING, events=OBSERVED, broker=seen, needs=Capabilities(**needs))


def test_001_01_there_are_24_typed_events() -> None:
    assert len(EVENTS) == 24
    assert all(kind.event_name() == name for name, kind in EVENTS.items())


async def test_001_04_sessions_are_reported_from_their_creation_to_idle_and_resumed(
    tmp_path: Path, write: Write
) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen)) as chat:
        await chat.say("hello")
        created = await seen.first("session.created")
        assert created == {"session_id": "s", "channel": "test", "owner": "ada"}
        idle = await seen.first("session.idle")
        assert idle == {"session_id": "s", "channel": "test", "owner": "ada", "turns": 1}
        assert not seen.of("session.resumed")
    again = write(OBSERVING, "again", events=OBSERVED, broker=seen)
    async with chatting(tmp_path, again) as chat:
        await chat.say("again")
        resumed = await seen.first("session.resumed")
        assert resumed == {"session_id": "s", "channel": "test", "owner": "ada", "messages": 2}


async def test_001_04_session_completed_is_another_name_of_session_idle(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    plugin = write(
        OBSERVING.replace(repr(OBSERVED), "('session.completed',)"),
        events=("session.completed",),
        broker=seen,
    )
    async with chatting(tmp_path, plugin) as chat:
        await chat.say("hello")
        assert (await seen.first("session.completed"))["turns"] == 1


async def test_001_04_a_failed_turn_is_reported_with_the_name_of_its_error(
    tmp_path: Path, write: Write
) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen)) as chat:
        chat.model.then(ServerFailedError("the model broke", provider="script"))
        await chat.say("hello")
        error = await seen.first("session.error")
        assert (error["error"], error["message"]) == ("ServerFailedError", "the model broke")
        failed = await seen.first("agent.failed")
        assert failed["outcome"] == "ServerFailedError"


async def test_001_02_tool_calls_are_reported_with_their_result(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen, messages="read")) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1 + 1"}'),), "tools"))
        await chat.say("go")
        after = await seen.first("tool.execute.after")
    assert after.pop("duration_ms") >= 0
    assert after.pop("call_id")
    assert after == {
        "session_id": "s",
        "tool": "calculator",
        "args": {"expression": "1 + 1"},
        "result": "2",
        "is_error": False,
    }


async def test_content_is_left_out_for_a_plugin_that_may_not_see_it(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen)) as chat:
        chat.model.then(Reply((Use("calculator", '{"expression": "1 + 1"}'),), "tools"))
        await chat.say("private words")
        await seen.first("tool.execute.after")
        await seen.until(lambda: len(seen.of("message.added")) == 2)
    assert "private" not in str(seen.calls)
    assert "1 + 1" not in str(seen.calls)


async def test_001_06_messages_are_reported_when_added_and_removed(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen, messages="read")) as chat:
        await chat.say("hello")
        await seen.until(lambda: len(seen.of("message.added")) == 2)
        added = [(each["role"], each["text"]) for each in seen.of("message.added")]
        assert added == [("user", "hello"), ("assistant", "You said: hello")]
        await chat.host.submit(written("/undo"))
        await seen.until(lambda: len(seen.of("message.removed")) == 2)
        removed = [(each["role"], each["text"]) for each in seen.of("message.removed")]
        assert removed == added


class Delegating(Plugin):
    """A plugin with a tool that starts a nested run."""

    name = "delegating"

    def tools(self) -> list[Tool]:
        async def delegate(context: ToolContext) -> str:
            """Delegate."""
            return await context.run_nested("count to three")

        return [tool_from(delegate)]


async def test_001_07_agents_and_their_nested_runs_are_reported(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen), Delegating()) as chat:
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


async def test_001_10_files_are_reported_without_their_content(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen)) as chat:
        chat.gateway.events.emit(FileModified("s", "/work/a.py", "answer", "+ private", "write_file"))
        chat.gateway.events.emit(FileDeleted("s", "/work/b.py", "answer", "- private", "delete_file"))
        modified, deleted = await seen.first("file.modified"), await seen.first("file.deleted")
    assert modified == {"session_id": "s", "path": "/work/a.py", "by": "write_file"}
    assert deleted == {"session_id": "s", "path": "/work/b.py", "by": "delete_file"}


async def test_001_11_slash_commands_are_reported_with_secrets_masked(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    settings = {"server": {"token": "a-secret-token-of-the-gateway-0123456789"}}
    async with chatting(tmp_path, observer(write, seen), **settings) as chat:
        await chat.say("/help a-secret-token-of-the-gateway-0123456789")
        executed = await seen.first("slash.command.executed")
        chat.gateway.events.emit(CommandExecuted("sessions list", "--json", ok=True))
        cli = await seen.first("command.executed")
    assert (executed["command"], executed["ok"]) == ("help", True)
    assert "a-secret" not in executed["args"]
    assert cli == {"session_id": "", "command": "sessions list", "args": "--json", "ok": True}


PRICED = {"models": {"script/one": {"input_price": 1000, "output_price": 1000}}}


async def test_001_19_a_budget_that_refuses_a_call_is_reported(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    budgets = {"all": {"scope": "all", "per": "ever", "stop": "0.08"}}
    async with chatting(tmp_path, observer(write, seen), **PRICED, budgets=budgets) as chat:
        await chat.say("hello")
        exceeded = await seen.first("budget.exceeded")
    assert (exceeded["budget"], exceeded["limit"]) == ("all", 0.08)


async def test_001_19_a_session_reports_its_cost_at_most_twice_a_second(tmp_path: Path, write: Write) -> None:
    seen = Seen()
    async with chatting(tmp_path, observer(write, seen), **PRICED) as chat:
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


async def test_an_observer_that_fails_disturbs_nothing(
    tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
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
    plugin = write(code, events=("session.idle", "session.created"), broker=seen)
    async with chatting(tmp_path, plugin) as chat:
        assert (await chat.say("hello")).text == "You said: hello"
        await seen.until(lambda: len(seen.of("called")) == 2)
    assert plugin.process.deaths == 0
