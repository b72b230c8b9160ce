"""Business accounts: the bot answers users who write to the owner of an account that it is connected to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from channels.telegram.fake import FakeTelegram
from channels.telegram.updates.chats import business_chat, connection_of, id_sequence, target_of
from channels.telegram.updates.objects import BUSINESS_KINDS, KINDS
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from tests.channels.telegram.lab import Lab, lab, until
from tests.channels.telegram.test_approvals import ASK, Shell, prompts

pytestmark = pytest.mark.slow

IN_CHATS = ("send", "edit", "delete")


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    """Yield a fake platform whose bot has the business mode."""
    async with FakeTelegram(business=True) as fake:
        yield fake


def owners(fake: FakeTelegram, *names: str) -> Mapping[str, Any]:
    """Return the setting that lists the owners."""
    return {"business": [fake.person(name).id for name in names or ("Olga",)]}


def gated(*pieces: str) -> tuple[Reply, asyncio.Event]:
    """Return an answer that pauses after its first piece until the gate is opened."""
    gate = asyncio.Event()
    return Reply((Say(pieces[0]), Gate(gate), *map(Say, pieces[1:]))), gate


def calls(fake: FakeTelegram) -> Sequence[tuple[str, Any]]:
    """Return the methods of the calls about chats, and the connections that they name."""
    return [
        (call.method, call.arguments.get("business_connection_id"))
        for call in fake.transcript.calls
        if call.method.startswith(IN_CHATS) and call.method != "deleteWebhook"
    ]


async def connected(running: Lab) -> None:
    """Wait until the bot polls, so that it gets the updates of its kinds."""
    await until(lambda: running.fake.world.updates.polled)


async def reasons(running: Lab) -> list[str]:
    """Return the reasons of dead letters."""
    return await running.gateway.parts.store.read(
        lambda c: [*c.execute(select(t.dead_letter.c.reason)).scalars()]
    )


def test_names_of_business_chats() -> None:
    name = business_chat("b_c-1", 77)
    assert connection_of(name) == "b_c-1"
    assert target_of(name) == {"business_connection_id": "b_c-1", "chat_id": 77}
    assert id_sequence(name) == id_sequence(business_chat("b_c-1", 78)) != id_sequence("77")
    assert (connection_of("77"), target_of("-77")) == (None, {"chat_id": -77})


async def test_a_customer_is_answered_on_behalf_of_the_owner(tmp_path: Path, fake: FakeTelegram) -> None:
    own = fake.private("Carl")
    async with lab(tmp_path, fake, thinking="👀", **owners(fake)) as running:
        await connected(running)
        connection = fake.connect("Olga")
        chat = fake.customer(connection, "Carl")
        reply, gate = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(chat, "a story")
        await until(lambda: fake.answers(chat) == ["Once upon"])
        await until(lambda: "typing" in fake.actions(chat))
        gate.set()
        await running.answers(chat, "Once upon a time")
        assert {connection_id for _, connection_id in calls(fake)} == {connection}
        assert {"sendMessage", "editMessageText", "sendChatAction"} <= {method for method, _ in calls(fake)}
        fake.say(own, "me again")
        await running.answers(own, "You said: me again")
        assert len({one.id for one in running.gateway.parts.sessions.live()}) == 2
        shown = fake.world.json(fake.messages(chat)[-1])
        assert shown["from"]["first_name"] == "Olga"
        assert shown["sender_business_bot"]["id"] == fake.world.bot.id
    fake.transcript.check()


async def test_what_the_owner_writes_is_not_answered(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        chat = fake.customer(fake.connect("Olga"), "Carl")
        fake.say(chat, "I will be there", "Olga")
        fake.say(chat, "good")
        await running.answers(chat, "You said: good")
        assert await running.states() == ["done"]
    fake.transcript.check()


async def test_an_edit_is_answered_again_and_a_deletion_ends_the_answer(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        connection = fake.connect("Olga")
        chat = fake.customer(connection, "Carl")
        question = fake.say(chat, "one")
        await running.answers(chat, "You said: one")
        fake.edit(chat, question, "two")
        await running.answers(chat, "You said: one", "You said: two")
        reply, _ = gated("Once upon", " a time")
        running.models.then(reply)
        story = fake.say(chat, "a story")
        await until(lambda: fake.answers(chat)[2:] == ["Once upon"])
        fake.delete(chat, story)
        await running.answers(chat, "You said: one", "You said: two")
        assert ("deleteBusinessMessages", connection) in calls(fake)
        interrupted = select(t.inbox.c.interrupted).where(t.inbox.c.interrupted.is_not(None))
        stored = await running.gateway.parts.store.read(lambda c: [*c.execute(interrupted).scalars()])
        assert stored == ["withdrawn"]
    fake.transcript.check()


async def test_it_is_off_unless_owners_are_listed(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake) as running:
        await connected(running)
        assert fake.world.updates.allowed == KINDS
        connection = fake.connect("Olga")
        chat, own = fake.customer(connection, "Carl"), fake.private("Carl")
        number = fake.say(chat, "hello")
        fake.deliver_raw({"business_message": fake.world.json(fake.chat(chat).messages[number])})
        fake.say(own, "hello")
        await running.answers(own, "You said: hello")
        assert await running.states() == ["done"]
    assert fake.answers(chat) == []
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        assert fake.world.updates.allowed == (*KINDS, *BUSINESS_KINDS)
    fake.transcript.check()


async def test_the_accounts_of_others_get_no_answers(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        foreign, listed = fake.connect("Mallory"), fake.connect("Olga")
        chat, other = fake.customer(foreign, "Carl"), fake.customer(listed, "Carl")
        fake.say(chat, "free answers, please")
        fake.say(other, "hello")
        await running.answers(other, "You said: hello")
        assert (fake.answers(chat), await running.states()) == ([], ["done"])
    fake.transcript.check()


async def test_customers_who_may_not_use_the_bot_get_no_reply_at_all(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    allowed = [str(fake.person("Carl").id)]
    async with lab(tmp_path, fake, allow=allowed, **owners(fake)) as running:
        await connected(running)
        connection = fake.connect("Olga")
        eve, carl = fake.customer(connection, "Eve"), fake.customer(connection, "Carl")
        fake.say(eve, "hello")
        fake.say(carl, "hello")
        await running.answers(carl, "You said: hello")
        assert fake.answers(eve) == [], "no pairing code on behalf of the owner"
    fake.transcript.check()


async def test_without_the_right_to_reply_nothing_is_answered(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        connection = fake.connect("Olga", "can_read_messages")
        chat = fake.customer(connection, "Carl")
        fake.say(chat, "hello")
        fake.world.connections[connection].rights.add("can_reply")
        fake.reconnect(connection, enabled=True)
        fake.say(chat, "and now?")
        await running.answers(chat, "You said: and now?")
        assert await running.states() == ["done"]
    fake.transcript.check()


async def test_a_connection_that_was_made_earlier_is_asked_for(tmp_path: Path, fake: FakeTelegram) -> None:
    connection = fake.connect("Olga")
    fake.forget_updates()
    chat = fake.customer(connection, "Carl")
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        fake.then("fail_before", "slow_down", method="getBusinessConnection")
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        fake.say(chat, "again")
        await running.answers(chat, "You said: hello", "You said: again")
    assert len(fake.transcript.of("getBusinessConnection")) == 3
    fake.transcript.check()


async def test_an_answer_for_a_disabled_connection_is_kept(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, streaming=False, **owners(fake)) as running:
        await connected(running)
        connection = fake.connect("Olga")
        chat = fake.customer(connection, "Carl")
        reply, gate = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(chat, "a story")
        await until(lambda: running.models.requests)
        fake.reconnect(connection, enabled=False)
        gate.set()
        await running.settled()
        [reason] = await reasons(running)
        assert "the business account does not let the bot write here" in reason
        assert fake.answers(chat) == []
        fake.reconnect(connection, enabled=True)
        [letter] = await running.gateway.parts.dead_letters.list()
        await running.gateway.parts.dead_letters.replay(letter.id)
        await until(lambda: fake.answers(chat))
        await running.settled()


async def test_a_message_that_comes_after_its_connection_was_disabled_is_kept(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake, **owners(fake)) as running:
        await connected(running)
        connection = fake.connect("Olga")
        chat = fake.customer(connection, "Carl")
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        late = fake.world.json(fake.messages(chat)[0]) | {"message_id": 99}
        fake.reconnect(connection, enabled=False)
        fake.deliver_raw({"business_message": late})
        fake.deliver_raw({"business_message": late | {"business_connection_id": "unknown"}})
        fake.deliver_raw({"business_message": late | {"business_connection_id": ""}})
        own = fake.private("Carl")
        fake.say(own, "hello")
        await running.answers(own, "You said: hello")
        said = await running.quarantined()
    assert [reason.partition(":")[0] for reason in said] == [
        "the business connection is disabled",
        "the business connection is unknown",
        "ValueError",
    ]


async def test_an_uncertain_answer_is_found_and_the_owners_words_stay(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake, streaming=False, **owners(fake)) as running:
        await connected(running)
        chat = fake.customer(fake.connect("Olga"), "Carl")
        fake.then("drop_after", method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        fake.say(chat, "hello")
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    [answer] = [one.id for one in fake.messages(chat) if one.sender.is_bot]
    fake.say(chat, "I am on my way", "Olga")
    fake.clock.advance(60)
    async with lab(tmp_path, fake, streaming=False, **owners(fake)) as running:
        await running.answers(chat, "You said: hello")
        assert await running.states() == ["done"]
    assert [(one.id, one.text) for one in fake.messages(chat) if one.sender.is_bot] == [
        (answer, "You said: hello")
    ]
    assert [one.text for one in fake.messages(chat)] == ["hello", "You said: hello", "I am on my way"]
    fake.transcript.check()


async def test_an_answer_that_was_not_sent_is_not_mistaken_for_the_owners_words(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake, streaming=False, **owners(fake)) as running:
        await connected(running)
        chat = fake.customer(fake.connect("Olga"), "Carl")
        fake.then("drop_before", method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        fake.say(chat, "hello")
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    fake.say(chat, "I am on my way", "Olga")
    fake.clock.advance(60)
    async with lab(tmp_path, fake, streaming=False, **owners(fake)) as running:
        await running.answers(chat, "You said: hello")
    shown = fake.messages(chat)
    assert [one.text for one in shown] == ["hello", "I am on my way", "You said: hello"]
    assert not any(one.buttons for one in shown)
    fake.transcript.check()


async def test_a_tool_is_approved_in_the_chat(tmp_path: Path, fake: FakeTelegram) -> None:
    shell = Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, **owners(fake)) as running:
        await connected(running)
        chat = fake.customer(fake.connect("Olga"), "Carl")
        running.models.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        fake.say(chat, "go")
        await until(lambda: prompts(fake, chat))
        [prompt] = prompts(fake, chat)
        query = fake.press(chat, prompt.id, "Allow once", "Olga")
        await until(lambda: query.answer)
        assert shell.ran == []
        fake.press(chat, prompt.id, "Allow once")
        await until(lambda: shell.ran)
        await running.settled()
        assert prompts(fake, chat) == []
    fake.transcript.check()
