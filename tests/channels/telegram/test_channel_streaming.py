"""Previews of running answers: drafts in private chats, edits in groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from channels.telegram.fake import FakeTelegram
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.channels.telegram.lab import Lab, lab, until

pytestmark = pytest.mark.slow


def gated(*pieces: str) -> tuple[Reply, asyncio.Event]:
    """Return an answer that pauses after its first piece until the gate is opened."""
    gate = asyncio.Event()
    first, *others = pieces
    return Reply((Say(first), Gate(gate), *map(Say, others))), gate


async def test_a_private_chat_sees_a_draft_and_then_one_message(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        reply, gate = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(chat, "a story")
        await until(lambda: fake.drafts(chat))
        assert [draft.text for draft in fake.drafts(chat)] == ["Once upon"]
        assert fake.answers(chat) == []
        await until(lambda: "typing" in fake.actions(chat))
        gate.set()
        await running.answers(chat, "Once upon a time")
    assert fake.drafts(chat) == []
    assert fake.transcript.of("editMessageText") == []
    fake.transcript.check()


async def test_without_streaming_only_the_finished_answer_is_shown(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat, group = fake.private(), fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, streaming=False, groups="always") as running:
        gates: list[asyncio.Event] = []
        for _ in range(2):
            reply, gate = gated("Once upon", " a time")
            running.models.then(reply)
            gates.append(gate)
        fake.say(chat, "a story")
        fake.say(group, "a story", "Ada")
        await until(lambda: len(running.models.requests) == 2)
        await until(lambda: "typing" in fake.actions(chat) and "typing" in fake.actions(group))
        for gate in gates:
            gate.set()
        await running.answers(chat, "Once upon a time")
        await running.answers(group, "Once upon a time")
    assert fake.transcript.of("editMessageText", "sendMessageDraft") == []
    fake.transcript.check()


async def test_stop_under_a_draft_ends_the_answer(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        reply, _ = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(chat, "a story")
        await until(lambda: fake.drafts(chat))
        fake.stop(chat)
        await running.answers(chat, "Once upon")
        fake.say(chat, "thanks")
        await running.answers(chat, "Once upon", "You said: thanks")
    fake.transcript.check()


async def test_a_stop_for_what_is_long_over_does_nothing(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        stopped = {"chat": {"id": chat, "type": "private"}, "draft_id": 77}
        fake.deliver_raw({"stopped_message_generation": stopped})
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
    fake.transcript.check()


async def test_a_group_sees_one_message_that_is_edited(tmp_path: Path) -> None:
    async with FakeTelegram(limits=True) as fake:
        group = fake.group("Lab", "Ada", admin=True)
        async with lab(tmp_path, fake, groups="always") as running:
            reply, gate = gated("Once upon", " a time")
            running.models.then(reply)
            asked = fake.say(group, "a story", "Ada")
            await until(lambda: fake.answers(group) == ["Once upon"])
            gate.set()
            await running.answers(group, "Once upon a time")
        assert fake.messages(group)[-1].reply_to == asked
        assert len(fake.transcript.of("sendMessage")) == 1
        fake.transcript.check()


async def test_a_crash_in_mid_stream_leaves_one_message_which_the_next_process_completes(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    group = fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        reply, _ = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(group, "a story", "Ada")
        await until(lambda: fake.answers(group) == ["Once upon"])
        running.gateway.parts.dispatcher.cancel()
    async with lab(tmp_path, fake, groups="always") as running:
        await running.answers(group, "You said: a story")
    assert len(fake.transcript.of("sendMessage")) == 1
    fake.transcript.check()


async def test_a_message_of_an_uncertain_send_is_found_by_the_next_process(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat, other = fake.private(), fake.private("Bob")
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.then("drop_after", method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        fake.say(chat, "hello")
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    for _ in range(4):
        fake.say(other, "meanwhile")
    fake.clock.advance(60)
    async with lab(tmp_path, fake, streaming=False) as running:
        await running.answers(chat, "You said: hello")
        await running.settled()
    fake.transcript.check()


async def test_a_message_is_found_though_much_was_written_elsewhere_before_it(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    """The numbers of messages count in all private chats and small groups of the bot."""
    chat, elsewhere = fake.private(), fake.group("Elsewhere", "Ada", kind="group", admin=True)
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.retry_after = 6  # longer than the answer elsewhere takes on a busy machine
        fake.then("slow_down", method="sendMessage")
        fake.say(chat, "hello")
        await until(lambda: fake.transcript.of("sendMessage"))
        for _ in range(40):
            fake.say(elsewhere, "hi", "Ada")
        fake.say(elsewhere, "@fake_bot hi", "Ada")
        await until(lambda: fake.answers(elsewhere))
        fake.then("drop_after", method="sendMessage")
        fake.retry_after = 30
        fake.then("slow_down", method="editMessageReplyMarkup")
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    [found] = [one.id for one in fake.messages(chat) if one.sender.is_bot]
    assert found > fake.messages(chat)[0].id + 40
    fake.clock.advance(60)
    async with lab(tmp_path, fake, streaming=False) as running:
        await running.answers(chat, "You said: hello")
        assert await running.states() == ["done", "done"]
    fake.transcript.check()


async def test_answers_to_others_in_the_same_chat_are_not_mistaken_for_it(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    group = fake.group("Lab", "Ada", "Bob", admin=True)
    how = {"groups": "always", "session_strategy": "chat_user", "streaming": False}
    async with lab(tmp_path, fake, **how) as running:
        fake.then("fail_before", method="sendMessage")
        fake.then(*["fail_before"] * 12, method="editMessageReplyMarkup")
        fake.say(group, "one", "Ada")
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        fake.say(group, "two", "Bob")
        await until(lambda: fake.answers(group) == ["You said: two"])
        running.gateway.parts.dispatcher.cancel()
    async with lab(tmp_path, fake, **how) as running:
        await until(lambda: len(fake.answers(group)) == 2)
        await running.settled()
    assert sorted(fake.answers(group)) == ["You said: one", "You said: two"]
    fake.transcript.check()


async def test_uncertain_sends_in_two_topics_are_distinguished(tmp_path: Path, fake: FakeTelegram) -> None:
    forum = fake.group("Forum", "Ada", forum=True, admin=True)
    news, talk = fake.topic(forum, "News", "Ada"), fake.topic(forum, "Talk", "Ada")
    how = {"groups": "always", "streaming": False}
    async with lab(tmp_path, fake, **how) as running:
        fake.then("drop_after", "drop_after", method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        fake.say(forum, "one", "Ada", thread=news)
        fake.say(forum, "two", "Ada", thread=talk)
        await until(lambda: len(fake.answers(forum)) == 2)
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    fake.clock.advance(60)
    async with lab(tmp_path, fake, **how) as running:
        await running.settled()
    stands = [one for one in fake.messages(forum) if one.sender.is_bot and not one.service]
    assert [(one.thread, one.text) for one in sorted(stands, key=lambda one: one.text)] == [
        (news, "You said: one"),
        (talk, "You said: two"),
    ]
    assert not any(one.buttons for one in stands)
    fake.transcript.check()


async def test_uncertain_sends_to_two_users_are_distinguished(tmp_path: Path, fake: FakeTelegram) -> None:
    group = fake.group("Lab", "Ada", "Bob", admin=True)
    how = {"groups": "always", "session_strategy": "chat_user", "streaming": False}
    async with lab(tmp_path, fake, **how) as running:
        fake.then("drop_after", "drop_after", method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        asked = {"one": fake.say(group, "one", "Ada"), "two": fake.say(group, "two", "Bob")}
        await until(lambda: len(fake.answers(group)) == 2)
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    fake.clock.advance(60)
    async with lab(tmp_path, fake, **how) as running:
        await running.settled()
    stands = [one for one in fake.messages(group) if one.sender.is_bot]
    assert {one.reply_to: one.text for one in stands} == {
        number: f"You said: {text}" for text, number in asked.items()
    }
    assert len(stands) == 2
    fake.transcript.check()


async def test_a_reaction_marks_the_message_that_is_being_answered(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, thinking="👀") as running:
        reply, gate = gated("Hm", " yes")
        running.models.then(reply)
        asked = fake.say(chat, "hello")
        bot = fake.world.bot.id
        await until(lambda: fake.chat(chat).messages[asked].reactions.get(bot))
        gate.set()
        await running.answers(chat, "Hm yes")
        assert not fake.chat(chat).messages[asked].reactions[bot]
    fake.transcript.check()


STOP = "🙊"


@asynccontextmanager
async def half_shown(
    directory: Path, fake: FakeTelegram, **options: Any
) -> AsyncGenerator[tuple[Lab, int, int, asyncio.Event]]:
    """Show the beginning of an answer in a group. Yields the group, the message and the gate of the rest."""
    group = fake.group("Lab", "Ada", "Eve", admin=True)
    async with lab(directory, fake, groups="always", **options) as running:
        reply, gate = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(group, "a story", "Ada")
        await until(lambda: fake.answers(group) == ["Once upon"])
        placed = select(t.outbox.c.id).where(t.outbox.c.platform_id.is_not(None))
        async with asyncio.timeout(60):
            while not await running.gateway.parts.store.read(lambda c: c.execute(placed).all()):
                await asyncio.sleep(0)
        yield running, group, fake.messages(group)[-1].id, gate


async def interruptions(running: Lab) -> list[str | None]:
    """Return how the accepted messages were interrupted, in order."""
    query = select(t.inbox.c.interrupted).order_by(t.inbox.c.received_at, t.inbox.c.ord)
    return await running.gateway.parts.store.read(lambda c: [*c.execute(query).scalars()])


async def test_a_stop_reaction_ends_the_answer(tmp_path: Path, fake: FakeTelegram) -> None:
    async with half_shown(tmp_path, fake) as (running, group, answer, _):
        fake.react(group, answer, "🤔", "Eve")
        fake.react(group, answer, STOP, "Eve")
        await running.settled()
        assert await interruptions(running) == ["stopped"], "durable before the update was confirmed"
        fake.say(group, "thanks", "Ada")
        await running.answers(group, "Once upon", "You said: thanks")
    fake.transcript.check()


async def test_a_stop_reaction_of_others_or_elsewhere_stops_nothing(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    allowed = [str(fake.person("Ada").id)]
    async with half_shown(tmp_path, fake, allow=allowed) as (running, group, answer, gate):
        fake.react(group, answer, STOP, "Eve")  # may not use the bot
        fake.react(group, answer - 1, STOP, "Ada")  # a message of a user
        fake.react(group, answer, "\N{THUMBS DOWN SIGN}", "Ada")
        await until(lambda: running.gateway.counters.feedback["telegram", "down"])
        gate.set()
        await running.answers(group, "Once upon a time")
        assert await interruptions(running) == [None]
    fake.transcript.check()


async def test_a_stop_reaction_on_a_finished_answer_leaves_the_running_one(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    group = fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups="always") as running:
        fake.say(group, "hi", "Ada")
        await running.answers(group, "You said: hi")
        finished = fake.messages(group)[-1].id
        reply, gate = gated("Once upon", " a time")
        running.models.then(reply)
        fake.say(group, "a story", "Ada")
        await until(lambda: fake.answers(group)[1:] == ["Once upon"])
        fake.react(group, finished, STOP, "Ada")
        await until(lambda: running.gateway.counters.feedback["telegram", "none"])
        gate.set()
        await running.answers(group, "You said: hi", "Once upon a time")
    fake.transcript.check()


async def test_the_stop_reaction_can_be_another_or_none(tmp_path: Path, fake: FakeTelegram) -> None:
    async with half_shown(tmp_path, fake, stop_reaction="") as (running, group, answer, gate):
        fake.react(group, answer, STOP, "Ada")
        fake.react(group, answer, "\N{THUMBS DOWN SIGN}", "Ada")
        await until(lambda: running.gateway.counters.feedback["telegram", "down"])
        gate.set()
        await running.answers(group, "Once upon a time")
    other = FakeTelegram()
    async with (
        other,
        half_shown(tmp_path / "other", other, stop_reaction="💔") as (running, group, answer, _),
    ):
        other.react(group, answer, "💔", "Ada")
        await running.answers(group, "Once upon")
    other.transcript.check()
