"""Histories: cursors do not pass messages that are not durable, and failed reads are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from channels.slack.api import Api
from channels.slack.fake import FakeSlack
from channels.slack.history import START, HistoryReader
from channels.slack.parse import Rules, UserMessage
from gateway.app import Gateway
from gateway.channel import Cursor
from gateway.settings.sections import Limits
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from tests.channels.slack.gateways import gateway_at, settings_of, settled, until

pytestmark = pytest.mark.slow

FAILS: Fault = "fail_before"
ONE, TWO, THREE = "1700000001.000100", "1700000002.000100", "1700000003.000100"


def history(api: Api, take: list[UserMessage], account: str = "T1") -> HistoryReader:
    """Return a reader of histories that appends the committed messages to ``take``."""

    async def keep(_chat: str, messages: Iterable[UserMessage]) -> None:
        take.extend(messages)

    made = HistoryReader(api, keep, pause=0.001)
    made.rules = Rules(
        channel="slack",
        team=account,
        bot_user="U0",
        home=True,
        strategy="thread",
        edits=True,
        prefix="",
        follows=made.follows,
    )
    made.restore([Cursor(account, "1700000000.000000", START)], account, "1700000000.000000")
    return made


def test_a_cursor_does_not_pass_a_message_that_is_not_durable() -> None:
    made = history(Api("xoxb-1", "http://127.0.0.1:1/"), [])
    for ts in (ONE, TWO, THREE):
        made.add_pending("C1", ts)
    first = made.cursor("C1", TWO)
    assert first is not None
    assert first.value < ONE
    made.note_committed("C1", TWO, ["C1"], [first])
    made.note_committed("C1", THREE, ["C1"], [made.cursor("C1", THREE)])
    last = made.cursor("C1", ONE)
    assert last is not None
    assert last.value == THREE, "everything before it is durable now"
    made.note_committed("C1", ONE, ["C1"], [last])
    assert made.cursor("C1", TWO) is None


async def test_a_history_is_read_however_often_that_fails() -> None:
    async with FakeSlack() as fake:
        fake.say("@ada", "hello")
        room = fake.chat("@ada").id
        fake.then(*[FAILS] * 20, method="conversations.history")
        api, taken = Api(fake.bot_token, fake.api_url, 1000), list[UserMessage]()
        async with api.connected(), asyncio.TaskGroup() as tasks:
            made = history(api, taken)
            made.read_all(tasks)
            reading = tasks.create_task(made.wait_until_read(room))
            await until(lambda: made.problem)
            assert room in made.problem
            await reading
            assert [written.message.text for written in taken] == ["hello"]
            await until(lambda: not made.problem)


async def test_what_cannot_be_read_is_reported_and_answered_before_what_is_written_then(
    tmp_path: Path,
) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        async with gateway_at(fake, tmp_path, models) as gateway:
            fake.say("@ada", "one")
            await settled(gateway, "done")
        fake.say("@ada", "two")
        fake.then(*[FAILS] * 3, method="conversations.history")
        async with gateway_at(fake, tmp_path, models) as gateway:
            fake.say("@ada", "three")
            await until(lambda: "cannot be read yet" in gateway.health()["slack"][1])
            assert fake.answers("@ada") == ["You said: one"]
            await settled(gateway, "done", "done", "done")
            await until(lambda: gateway.health()["slack"] == (True, ""))
        assert fake.answers("@ada") == ["You said: one", "You said: two", "You said: three"]
    fake.transcript.check()


async def test_a_history_of_an_unexpected_shape_is_read_again(tmp_path: Path) -> None:
    async with FakeSlack() as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            fake.say("@ada", "one")
            await settled(gateway, "done")
        fake.say("@ada", "two")
        fake.answer_next("conversations.history", {"ok": True})
        async with gateway_at(fake, tmp_path) as gateway:
            await settled(gateway, "done", "done")
    fake.transcript.check()


async def test_messages_that_were_not_accepted_are_read_from_the_history(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models:
        models.then(Reply((Gate(gate), Say("Done."))))
        settings = settings_of(tmp_path, models, fake)
        gateway = Gateway(settings.model_copy(update={"limits": Limits(global_inbox=3)}))
        async with gateway.running():
            await fake.until(lambda: fake.sockets.live)
            for number in range(9):
                fake.say("@ada", f"{number}")
            await until(lambda: gateway.parts.dispatcher.waiting == 3)
            await until(lambda: fake.clock.advance(100) or any(one.lost for one in fake.deliveries))
            gate.set()
            await settled(gateway, *["done"] * 9)
        assert fake.answers("@ada") == ["Done.", *(f"You said: {number}" for number in range(1, 9))]
    fake.transcript.check()
