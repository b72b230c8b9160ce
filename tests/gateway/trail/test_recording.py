"""What happens to a message is in its trail, from its receipt to its settled answer, also over a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import func, select

from gateway import (
    Intercept,
    Pass,
    Plugin,
    PluginContext,
    Tool,
    ToolBlock,
    ToolCall,
    ToolContext,
    Transform,
    TurnContext,
    UserInput,
    tool_from,
)
from gateway.channel import OutboundMessage, Placed, PlacementDeferred, PlacementRefused, PlacementUncertain
from gateway.contract.channel import Withdrawal
from gateway.contract.errors import AuthFailedError, RateLimitError
from gateway.session import Session
from gateway.session.frames import ApprovalAsked
from gateway.store import schema as t
from gateway.testing.chat import Chat, ScriptedModel, chatting, written
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.letterbox import Letterbox
from gateway.testing.served import until
from gateway.trail import Path as Trail
from gateway.trail import Step, read

SECRET = "sk-live-0123456789abcdef0123"


class Box(Letterbox):
    """A channel that first raises what it is given."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("box")
        self.errors = list(errors)

    async def send(self, outbound: OutboundMessage) -> Placed:
        if self.errors:
            raise self.errors.pop(0)
        return await super().send(outbound)


class Placing(Plugin):
    """Registers a channel."""

    name = "placing"

    def __init__(self, box: Letterbox) -> None:
        self.box = box

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        ctx.channels.register(self.box)


class Guard(Plugin):
    """Changes one text, answers another, and blocks a tool."""

    name = "guard"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        if text == "stop here":
            return Intercept("no")
        return Transform("changed") if text == "change me" else Pass()

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock | None:
        return ToolBlock("not now", is_error=True) if call.arguments.get("city") == "Nowhere" else None

    def tools(self) -> Sequence[Tool]:
        async def weather(city: str, context: ToolContext) -> str:
            """Return the weather."""
            if city == "Hang":
                await asyncio.Event().wait()
            return f"sunny in {city}"

        return [structs.replace(tool_from(weather), match_key=lambda given: str(given["city"]))]


class Second(Plugin):
    """One more provider."""

    name = "second"

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.providers is not None
        model = ScriptedModel()
        model.id, model.name = "second", "Second"
        ctx.providers.register(model)


async def trail_of(chat: Chat, answer_id: str) -> Trail:
    """Read the trail of the message with this answer."""
    store = chat.gateway.parts.store
    query = select(t.inbox.c.id).where(t.inbox.c.answer_id == answer_id)
    return await read(store, await store.read(lambda c: c.execute(query).scalar_one()))


async def settled(chat: Chat, text: str, **fields: Any) -> Trail:
    """Send a message, wait until it is settled, and return its trail."""
    answer_id = await chat.accept(text, **fields)
    return await settled_trail(chat, answer_id)


async def settled_trail(chat: Chat, answer_id: str) -> Trail:
    while True:
        path = await trail_of(chat, answer_id)
        if path.steps[-1].kind == "final":
            return path
        await asyncio.sleep(0.005)


def kinds(steps: Sequence[Step]) -> list[str]:
    return [step.kind for step in steps]


def one(path: Trail, kind: str) -> Step:
    [found] = [step for step in path.steps if step.kind == kind]
    return found


async def test_a_plain_turn_is_a_few_steps_in_one_row(tmp_path: Path, engine_settings: dict[str, Any]):
    async with chatting(tmp_path, **engine_settings) as chat:
        path = await settled(chat, "hello")
        assert kinds(path.steps) == ["received", "accepted", "model", "final"]
        assert path.rows == {"inbox": 1, "trail": 1}
        model = one(path, "model")
        assert (model.name, model.state, model.detail["attempt"]) == ("script/one", "ok", 1)
        assert int(model.detail["input_tokens"]) > 0
        assert path.steps[-1].detail == {"outcome": "answered"}
        assert all(a.at <= b.at for a, b in zip(path.steps, path.steps[1:], strict=False))
        assert one(await settled(chat, "/help"), "command").name == "help"
        chat.model.then(AuthFailedError("bad key", status=401))
        failed = await settled(chat, "again")
        assert (one(failed, "model").detail["code"], one(failed, "model").detail["yours"]) == (
            "AuthFailedError",
            True,
        )
        assert failed.steps[-1].detail == {"outcome": "failed", "code": "AuthFailedError"}


async def test_hooks_name_their_plugins_and_verdicts(tmp_path: Path, engine_settings: dict[str, Any]):
    async with chatting(tmp_path, Guard(), **engine_settings) as chat:
        changed = await settled(chat, "change me")
        passed = await settled(chat, "hello")
        stopped = await settled(chat, "stop here")
    assert one(changed, "hook").detail == {"hook": "transform_user_input", "verdict": "changed"}
    assert (one(passed, "hook").name, one(passed, "hook").state) == ("guard", "ok")
    assert (one(stopped, "hook").state, one(stopped, "hook").detail["verdict"]) == ("refused", "intercepted")
    assert stopped.steps[-1].detail == {"outcome": "notice"}


async def test_tool_calls_say_who_allowed_them(tmp_path: Path, engine_settings: dict[str, Any]):
    rules = {"weather": "allow", "*": "deny"}
    async with chatting(tmp_path, Guard(), permissions=rules, **engine_settings) as chat:
        uses = (Use("weather", '{"city": "Rome"}', "c1"), Use("weather", '{"city": "Nowhere"}', "c2"))
        chat.model.then(Reply(uses, "tools"), Reply((Say("fine"),)))
        path = await settled(chat, "how is it?")
        assert path.rows["trail"] > 1
    tools = [step for step in path.steps if step.kind == "tool"]
    assert [(step.name, step.state, step.detail["allowed_by"]) for step in tools] == [
        ("weather", "ok", "rule weather"),
        ("weather", "failed", "rule weather"),
    ]
    assert [step.detail["verdict"] for step in path.steps if step.kind == "hook"].count("blocked") == 1
    assert [step.state for step in path.steps if step.kind == "model"] == ["ok", "ok"]
    assert "Rome" not in repr(path)


@pytest.mark.parametrize("how", ["once", "deny"])
async def test_tool_calls_name_the_pattern_and_the_person(
    tmp_path: Path, engine_settings: dict[str, Any], how: Any
):
    rules: dict[str, Any] = {"weather": {"R*": "allow", "*": "ask"}}
    async with chatting(tmp_path, Guard(), permissions=rules, **engine_settings) as chat:
        uses = (Use("weather", '{"city": "Rome"}', "c1"), Use("weather", '{"city": "Oslo"}', "c2"))
        chat.model.then(Reply(uses, "tools"), Reply((Say("fine"),)))
        answer_id = await chat.accept("how is it?")
        question = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))
        await chat.host.settle(question.approval_id, how, session="s")
        path = await settled_trail(chat, answer_id)
    found = {step.detail["call"]: step.detail for step in path.steps if step.kind == "tool"}
    by = "allowed_by" if how == "once" else "refused_by"
    assert found["c1"] == {"call": "c1", "allowed_by": "rule weather: R*"}
    assert found["c2"] == {"call": "c2", by: "person", "asked_by": "rule weather: *"}


async def test_calls_name_their_key_and_their_waits(tmp_path: Path):
    opened = asyncio.Event()
    async with FakeModels() as fake:
        given = {"base_url": fake.openai_url, "max_retries": 0}
        keys = {"api_key": "first", "api_keys": ("second",), "concurrency": 1}
        providers = {"openai": {**given, **keys}}
        async with chatting(tmp_path, providers=providers, model="openai/fake-small") as chat:
            fake.then(*[Reply((Say("One"), Gate(opened)))] * 2)
            running = [await chat.accept("hello", name) for name in ("a", "b")]
            await until(lambda: len(fake.requests) == 2)
            waiting = await chat.accept("hello", "c")
            mailbox = chat.gateway.parts.dispatcher.mailbox
            await until(
                lambda: (
                    (box := mailbox("c")) is not None
                    and box.running is not None
                    and any(step.state == "waiting" for step in box.running.trail.unsaved)
                )
            )
            opened.set()
            paths = [await settled_trail(chat, name) for name in (*running, waiting)]
        used = [one(path, "model").detail["key"] for path in paths]
        assert sorted(used[:2]) == ["key 1 (api_key)", "key 2 (api_keys[0])"]
        waited = one(paths[2], "waited")
        assert (waited.state, waited.detail["for"], waited.took > 0) == ("ok", "key", True)
        fake.then(Refusal(401, "no"))
        settings = {"openai": {**given, "api_key": "alone"}}
        async with chatting(tmp_path / "one", providers=settings, model="openai/fake-small") as chat:
            assert one(await settled(chat, "hello"), "model").detail["key"] == "key 1 (api_key)"


async def test_the_chain_shows_models_that_were_asked_and_those_that_were_not(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    chain = ["gone/big", "second/big"]
    async with chatting(tmp_path, Second(), fallback=chain, **engine_settings) as chat:
        chat.gateway.redactor.replace([SECRET])
        chat.model.then(RateLimitError(f"too fast, {SECRET}", status=429))
        path = await settled(chat, "hello")
    steps = [(step.kind, step.name, step.state) for step in path.steps[2:]]
    assert steps == [
        ("model", "script/one", "failed"),
        ("fallback", "gone/big", "skipped"),
        ("fallback", "second/big", "ok"),
        ("model", "second/big", "ok"),
        ("final", "", "ok"),
    ]
    assert path.steps[2].detail["retryable"] is True
    assert SECRET not in repr(path)


async def test_placements_show_each_page_and_what_kept_it(tmp_path: Path, engine_settings: dict[str, Any]):
    box = Box(PlacementUncertain("lost"), PlacementDeferred("slowly", seconds=0.01))
    async with chatting(tmp_path, Placing(box), channels={"box": {"dm": "open"}}, **engine_settings) as chat:
        receipt = await box.write(written("hello", channel="box"))
        path = await settled_trail(chat, receipt.answer_id)
        states = [(s.kind, s.state) for s in path.steps if s.kind in ("placement", "waited", "final")]
        assert ("placement", "waiting") in states
        assert ("waited", "ok") in states
        placed = [s for s in path.steps if s.kind == "placement" and s.state == "ok"]
        assert [s.detail["platform_id"] for s in placed] == ["1"]
        assert path.steps[-1].detail == {"outcome": "answered"}
        box.errors.append(PlacementRefused("the chat is gone"))
        refused = await box.write(written("again", channel="box"))
        path = await settled_trail(chat, refused.answer_id)
    assert [(s.kind, s.state) for s in path.steps[-2:]] == [("placement", "refused"), ("final", "failed")]
    assert path.steps[-1].detail == {"outcome": "dead", "code": "PlacementRefused"}


async def test_what_a_process_did_before_it_ended_stays_in_the_trail(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    settings: dict[str, Any] = {"limits": {"drain_seconds": 0}}
    async with chatting(tmp_path, Guard(), **settings, **engine_settings) as chat:
        chat.model.then(Reply((Use("weather", '{"city": "Hang"}'),), "tools"))
        answer_id = await chat.accept("wait")
        while (await trail_of(chat, answer_id)).rows["trail"] < 1:
            await asyncio.sleep(0.005)
    async with chatting(tmp_path, Guard(), **settings, **engine_settings) as chat:
        path = await settled_trail(chat, answer_id)
    restarts = [(s.name, s.state) for s in path.steps if s.kind == "restart"]
    assert restarts == [("shutdown", "waiting"), ("", "ok")]
    assert kinds(path.steps).count("model") == 2
    assert path.steps[-1].detail == {"outcome": "answered"}


async def test_a_message_whose_answer_is_being_committed_when_the_gateway_ends_is_not_left_to_the_next(
    tmp_path: Path,
):
    opened = asyncio.Event()
    async with chatting(tmp_path) as chat, asyncio.TaskGroup() as tasks:
        chat.model.then(Reply((Gate(opened), Say("Hi"))))
        answer_id = await chat.accept("Hello?")
        await until(lambda: chat.model.calls)
        session, writer = chat.gateway.parts.sessions.get("s"), chat.gateway.parts.store.writer
        assert session is not None
        other = sqlite3.connect(tmp_path / "trunkline.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        opened.set()
        await until(lambda: writer.oldest_started is not None)
        tasks.create_task(_close_after_turn(session, other))
        chat.gateway.parts.dispatcher.cancel()  # as at an orderly end, once the time to drain is over
    async with chatting(tmp_path) as chat:
        path = await trail_of(chat, answer_id)
    assert kinds(path.steps) == ["received", "accepted", "model", "final"]


async def _close_after_turn(session: Session, other: sqlite3.Connection) -> None:
    """End another process's hold on the database once the turn of a session was cancelled."""
    await until(lambda: session.turn is None)
    other.close()


async def test_a_deleted_message_leaves_no_trail(tmp_path: Path, engine_settings: dict[str, Any]):
    opened = asyncio.Event()
    async with chatting(tmp_path, **engine_settings) as chat:
        store, intake = chat.gateway.parts.store, chat.gateway.parts.intake

        async def rows() -> list[str]:
            return await store.read(lambda c: list(c.execute(select(t.trail.c.inbox_id)).scalars()))

        chat.model.then(Reply((Say("One"), Gate(opened))))
        running = await chat.accept("hello", dedup_key="1")
        await chat.accept("again", dedup_key="2")
        await until(lambda: len(chat.model.calls) == 1)
        # The running one and one that waits; by the host, and by the channel.
        await intake.withdraw("test", "bot", "1")
        await intake.receiver("test")(signals=[Withdrawal("bot", "2")])
        opened.set()
        kept = await settled(chat, "and this?")
        assert not await intake.withdraw("test", "bot", "unknown")
        query = select(t.inbox.c.id).where(t.inbox.c.answer_id == running)
        message = await store.read(lambda c: c.execute(query).scalar_one())
        assert len(await rows()) == 1
        assert message not in await rows()
        assert kept.rows["trail"] == 1
        # Also one that has its answer.
        done = await settled(chat, "done", dedup_key="3")
        assert (len(await rows()), done.rows["trail"]) == (2, 1)
        await intake.withdraw("test", "bot", "3")
        assert len(await rows()) == 1


async def test_the_trail_goes_with_its_conversation_and_by_the_settings(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        store = chat.gateway.parts.store

        async def rows() -> int:
            return await store.read(
                lambda c: c.execute(select(func.count()).select_from(t.trail)).scalar_one()
            )

        kept = await settled(chat, "hello", session="kept")
        await settled(chat, "hello", session="gone")
        assert await rows() == 2
        await chat.gateway.parts.sessions.delete("gone")
        assert await rows() == 1
        assert kept.is_known
    async with chatting(tmp_path / "off", store={"trail": "off"}) as chat:
        await chat.say("hello")
        store = chat.gateway.parts.store
        assert await rows() == 0
    async with chatting(tmp_path / "some", store={"trail": "failures"}) as chat:
        store = chat.gateway.parts.store
        await chat.say("hello")
        assert await rows() == 0
        chat.model.then(AuthFailedError("no", status=401))
        assert kinds((await settled(chat, "again")).steps)[2:] == ["model", "final"]
