"""Groups, forums, topics, several bots, and chats that refuse messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram
from gateway.channel import Address, OpensChats
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_platform import Fault
from tests.channels.telegram.lab import lab, until

NAME = "@fake_bot"


@pytest.mark.parametrize(
    ("groups", "heard"),
    [
        ("mention", ["named", "replied", "command"]),
        ("reply", ["replied", "command"]),
        ("command", ["command"]),
        ("always", ["talk", "named", "replied", "command"]),
    ],
)
async def test_in_groups_it_answers_messages_for_the_bot(
    tmp_path: Path, fake: FakeTelegram, groups: str, heard: list[str]
) -> None:
    group = fake.group("Lab", "Ada", admin=True)
    async with lab(tmp_path, fake, groups=groups, streaming=False) as running:
        fake.say(group, f"/usage{NAME}", "Ada")
        await until(lambda: len(fake.answers(group)) == 1)
        await running.settled()
        first = fake.messages(group)[-1].id
        fake.say(group, "talk", "Ada")
        fake.say(group, f"{NAME}, named", "Ada")
        fake.say(group, "replied", "Ada", reply_to=first)
        fake.say(group, "/usage@other_bot", "Ada")
        # It would be answered beside the messages before it.
        await until(lambda: len(fake.answers(group)) == len(heard))
        fake.say(group, "/usage", "Ada")
        wanted = len(heard) + 1
        await until(lambda: len(fake.answers(group)) == wanted)
        await running.settled()
        said = fake.answers(group)[1:]
    assert said[:-1] == [f"You said: {word}" for word in heard[:-1]]
    assert "tokens" in said[-1]
    fake.transcript.check()


@pytest.mark.parametrize(
    ("strategy", "sessions"),
    [
        ("chat", ["{0}", "{0}", "{0}"]),
        ("chat_user", ["{0}:u{1}", "{0}:u{2}", "{0}:u{1}"]),
        ("thread", ["{0}", "{0}", "{0}:t{3}"]),
    ],
)
async def test_the_session_strategy_is_a_setting(
    tmp_path: Path, fake: FakeTelegram, strategy: str, sessions: list[str]
) -> None:
    forum = fake.group("Forum", "Ada", "Ben", forum=True, admin=True)
    topic = fake.topic(forum, "News", "Ada")
    async with lab(tmp_path, fake, groups="always", session_strategy=strategy) as running:
        fake.say(forum, "one", "Ada")
        fake.say(forum, "two", "Ben")
        fake.say(forum, "three", "Ada", thread=topic)
        await until(lambda: len(fake.answers(forum)) == 3)
        await running.settled()
        found = {session.id for session in running.gateway.parts.sessions.live()}
    people = [fake.person(name).id for name in ("Ada", "Ben")]
    lead = f"telegram:{fake.token.partition(':')[0]}:"
    assert found == {lead + session.format(forum, *people, topic) for session in sessions}
    fake.transcript.check()


async def test_each_topic_of_a_forum_is_a_conversation(tmp_path: Path, fake: FakeTelegram) -> None:
    forum = fake.group("Forum", "Ada", forum=True, admin=True)
    news, talk = fake.topic(forum, "News", "Ada"), fake.topic(forum, "Talk", "Ada")
    async with lab(tmp_path, fake, groups="mention") as running:
        fake.say(forum, f"{NAME} one", "Ada", thread=news)
        fake.say(forum, f"{NAME} two", "Ada", thread=talk)
        fake.say(forum, f"{NAME} three", "Ada")
        fake.say(forum, "@ben_s is meant", "Ada", thread=news)
        await until(lambda: len(fake.answers(forum)) == 3)
        await running.settled()
        sessions = {session.id for session in running.gateway.parts.sessions.live()}
    answers = [
        (one.thread, one.text) for one in fake.messages(forum) if one.sender.is_bot and not one.service
    ]
    assert sorted(answers, key=str) == sorted(
        [(news, "You said: one"), (talk, "You said: two"), (None, "You said: three")], key=str
    )
    bot = fake.world.bot.id
    assert sessions == {f"telegram:{bot}:{forum}{end}" for end in (f":t{news}", f":t{talk}", "")}
    fake.transcript.check()


async def test_private_chats_may_have_topics(tmp_path: Path) -> None:
    async with FakeTelegram(topics=True) as fake:
        chat = fake.private()
        async with lab(tmp_path, fake) as running:
            fake.say(chat, "hello")
            await running.answers(chat, "You said: hello")
        asked, answer = [one for one in fake.messages(chat) if not one.service]
        assert answer.thread == asked.thread is not None
        fake.transcript.check()


async def test_a_reply_in_a_plain_group_is_not_a_topic(tmp_path: Path, fake: FakeTelegram) -> None:
    group = fake.group("Lab", "Ada", "Bob", admin=True)
    async with lab(tmp_path, fake, session_strategy="chat_user") as running:
        first = fake.say(group, "the line is open", "Bob")
        fake.say(group, f"{NAME} really?", "Ada", reply_to=first)
        await running.answers(group, "You said: [Reply to Bob]\n\nthe line is open\n\nreally?")
        [session] = [session.id for session in running.gateway.parts.sessions.live()]
    assert session.endswith(f"{group}:u{fake.person('Ada').id}")
    fake.transcript.check()


async def test_two_bots_do_not_hear_each_other(tmp_path: Path, fake: FakeTelegram) -> None:
    async with FakeTelegram(token="42:second-bot-second-bot-second-bot") as second:
        channels = {
            "telegram": {
                "allow": "*",
                "accounts": {
                    "one": {"token": fake.token, "api_base_url": fake.url},
                    "two": {"token": second.token, "api_base_url": second.base_url},
                },
            }
        }
        async with lab(tmp_path, fake, channels=channels) as running:
            ada, bob = fake.private(), second.private("Bob")
            fake.say(ada, "hello")
            second.say(bob, "hi")
            await running.answers(ada, "You said: hello")
            await until(lambda: second.answers(bob) == ["You said: hi"])
            await running.settled()
            await until(lambda: all(ok for ok, _ in running.gateway.health().values()))
        second.transcript.check()
    fake.transcript.check()


async def test_an_unauthorized_user_gets_a_pairing_code(tmp_path: Path, fake: FakeTelegram) -> None:
    ada, eve = fake.private("Ada"), fake.private("Eve")
    async with lab(tmp_path, fake, allow=[ada]) as running:
        fake.say(eve, "let me in")
        fake.say(ada, "hello")
        await running.answers(ada, "You said: hello")
        await until(lambda: bool(fake.answers(eve)))
        await running.settled()
        assert "trunkline pair approve" in fake.answers(eve)[0]
        assert len(running.models.requests) == 1
    fake.transcript.check()


async def test_a_wrong_token_is_reported_and_the_other_bot_works(tmp_path: Path, fake: FakeTelegram) -> None:
    channels = {
        "telegram": {
            "api_base_url": fake.url,
            "allow": "*",
            "accounts": {
                "bad": {"token": "1:wrong"},
                "blank": {"token": " "},
                "none": {},
                "good": {"token": fake.token},
            },
        }
    }
    async with lab(tmp_path, fake, channels=channels) as running:
        chat = fake.private()
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        health = running.gateway.health
        await until(lambda: health()["telegram.bad"][1].startswith("Telegram rejects the token"))
        assert health()["telegram.good"] == (True, "")
        assert "must not be blank" in health()["telegram.blank"][1]
        assert "token" in health()["telegram.none"][1]
        assert not any("\n" in said or "wrong" in said for _, said in health().values())
    fake.transcript.check()


async def test_a_second_poller_makes_the_channel_unhealthy(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake) as running:
        await until(lambda: fake.world.updates.polled)
        fake.world.updates.terminate(
            "other getUpdates request; make sure that only one bot instance is running"
        )
        await until(
            lambda: (
                "Conflict" in running.gateway.health()["telegram"][1]
                or "terminated" in running.gateway.health()["telegram"][1]
            )
        )
        chat = fake.private()
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        assert running.gateway.health()["telegram"] == (True, "")


async def test_a_refused_answer_becomes_a_dead_letter(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.say(chat, "hello")
        fake.block()
        await running.settled()
        await until(lambda: running.gateway.parts.dispatcher.waiting == 0)
        fake.unblock()
        fake.say(chat, "again")
        await until(lambda: "You said: again" in fake.answers(chat))
        await running.settled()
        assert (await running.states())[-1] == "done"
    fake.transcript.check()


async def test_a_group_that_becomes_a_supergroup_is_followed(tmp_path: Path, fake: FakeTelegram) -> None:
    group = fake.group("Lab", "Ada", kind="group", admin=True)
    async with lab(tmp_path, fake, groups="always", streaming=False) as running:
        fake.then("slow_down", method="sendMessage")
        fake.say(group, "hello", "Ada")
        await until(lambda: fake.transcript.of("sendMessage"))
        new = fake.migrate(group)
        await until(lambda: fake.answers(new) == ["You said: hello"])
        await running.settled()
        assert fake.answers(group) == []


@pytest.mark.parametrize("strategy", ["thread", "chat_user"])
async def test_a_conversation_continues_when_its_group_becomes_a_supergroup(
    tmp_path: Path, fake: FakeTelegram, strategy: str
) -> None:
    group = fake.group("Lab", "Ada", kind="group", admin=True)
    options: dict[str, Any] = {"groups": "always", "session_strategy": strategy}
    async with lab(tmp_path, fake, **options) as running:
        fake.say(group, "one", "Ada")
        await running.answers(group, "You said: one")
        new = fake.migrate(group)
        fake.say(new, "two", "Ada")
        await running.answers(new, "You said: two")
    async with lab(tmp_path, fake, **options) as running:
        fake.say(new, "three", "Ada")
        await running.answers(new, "You said: two", "You said: three")
        told = running.models.requests[-1].body["messages"]
        assert [one["content"] for one in told if one["role"] == "user"] == ["one", "two", "three"]
        account = fake.token.partition(":")[0]
        channel = running.gateway.channels.get("telegram")
        assert isinstance(channel, OpensChats)
        there = [channel.session_of(Address("telegram", account, str(chat))) for chat in (group, new)]
        assert there[0] == there[1]
    fake.transcript.check()


@pytest.mark.parametrize(
    ("fault", "is_readable", "again"),
    [("drop_after", True, False), ("drop_before", True, True), ("drop_after", False, True)],
)
async def test_an_unconfirmed_answer_in_a_group_that_becomes_a_supergroup_is_kept(
    tmp_path: Path, fake: FakeTelegram, fault: Fault, is_readable: bool, again: bool
) -> None:
    group = fake.group("Lab", "Ada", kind="group", admin=True)
    how = {"groups": "always", "streaming": False}
    async with lab(tmp_path, fake, **how) as running:
        fake.then(fault, method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        fake.say(group, "hello", "Ada")
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    stands = fake.answers(group)
    new = fake.migrate(group)
    fake.chat(group).blocked = not is_readable
    fake.clock.advance(60)
    async with lab(tmp_path, fake, **how) as running:
        await running.settled()
        assert await running.states() == ["done"]
    assert fake.answers(group) == stands
    assert fake.answers(new) == (["You said: hello"] if again else [])
    fake.transcript.check()


async def test_an_unconfirmed_answer_is_found_in_the_supergroup_that_it_followed_to(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    group = fake.group("Lab", "Ada", kind="group", admin=True)
    how = {"groups": "always", "streaming": False}
    async with lab(tmp_path, fake, **how) as running:
        gate = asyncio.Event()
        running.models.then(Reply((Say("Once upon"), Gate(gate), Say(" a time"))))
        fake.say(group, "a story", "Ada")
        await until(lambda: running.models.requests)
        new = fake.migrate(group)
        fake.then("none", "drop_after", method="sendMessage")
        fake.then("slow_down", method="editMessageReplyMarkup")
        fake.retry_after = 30
        gate.set()
        await until(lambda: fake.transcript.of("editMessageReplyMarkup"))
        running.gateway.parts.dispatcher.cancel()
    fake.clock.advance(60)
    async with lab(tmp_path, fake, **how) as running:
        await running.settled()
        assert await running.states() == ["done"]
    assert (fake.answers(group), fake.answers(new)) == ([], ["Once upon a time"])
    fake.transcript.check()


async def test_a_reaction_in_a_group_that_becomes_a_supergroup_is_on_no_other_message(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    group = fake.group("Lab", "Ada", kind="group", admin=True)
    async with lab(tmp_path, fake, groups="always", streaming=False, thinking="👀") as running:
        gate = asyncio.Event()
        running.models.then(Reply((Say("Once upon"), Gate(gate), Say(" a time"))))
        fake.say(group, "a story", "Ada")
        await until(lambda: fake.transcript.of("setMessageReaction"))
        new = fake.migrate(group)
        gate.set()
        await until(lambda: fake.answers(new) == ["Once upon a time"])
        await until(lambda: len(fake.transcript.of("setMessageReaction")) == 2)
    chats = {call.arguments["chat_id"] for call in fake.transcript.of("setMessageReaction")}
    assert chats == {group}
    fake.transcript.check()


async def test_a_bot_that_has_said_who_it_is_need_not_say_it_again(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    fake.then("fail_before", method="deleteWebhook")
    fake.then("drop_after", method="setMyCommands")
    async with lab(tmp_path, fake) as running:
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
        called = [call.method for call in fake.transcript.calls if call.method != "getUpdates"]
        assert called == ["getMe", *["deleteWebhook"] * 2, *["setMyCommands"] * 2]
    fake.transcript.check()
