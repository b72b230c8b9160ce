"""Conversations, threads, changed and deleted messages, and files, from end to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from channels.discord.fake import FakeDiscord
from gateway.app import Gateway
from gateway.store import schema as t
from gateway.testing.models import FakeModels
from gateway.testing.script import Gate, Reply, Say
from tests.channels.discord.talking import REGISTER, bot_at, gateway_at, healthy, settings_for, settled, until
from tests.recordings import Hearing, ogg_opus


async def sessions(gateway: Gateway) -> int:
    return len(await gateway.parts.store.read(lambda c: set(c.execute(select(t.inbox.c.session)).scalars())))


@pytest.mark.parametrize(("strategy", "count"), [("thread", 3), ("chat", 2), ("chat_user", 4)])
async def test_what_is_one_conversation_is_a_matter_of_settings(
    fake: FakeDiscord, tmp_path: Path, strategy: str, count: int
) -> None:
    thread = fake.start_thread("general", "aside")
    async with gateway_at(fake, tmp_path, session_strategy=strategy) as gateway:
        fake.say(fake.dm("ada"), "one")
        fake.say("general", f"{fake.mention} two")
        fake.say("general", f"{fake.mention} three", "bob")
        fake.say(thread, f"{fake.mention} four")
        fake.say(thread, f"{fake.mention} five", "cleo")
        await settled(gateway, 5)
        assert await sessions(gateway) == count
    assert sorted(fake.answers(thread)) == ["You said: five", "You said: four"]
    assert sorted(fake.answers("general")) == ["You said: three", "You said: two"]
    fake.transcript.check()


async def test_answers_open_a_thread_where_the_conversation_goes_on(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path, threads="open") as gateway:
        asked = fake.say("general", f"{fake.mention} what about lunch?")
        await settled(gateway, 1)
        (thread,) = fake.threads("general")
        assert (thread.id, thread.name) == (asked, "what about lunch?")
        fake.say(thread, "and dinner?")
        await settled(gateway, 2)
        assert await sessions(gateway) == 1
    said = [answer for answer in fake.answers(thread) if answer]  # one tells that the thread was opened
    assert said == ["You said: what about lunch?", "You said: and dinner?"]
    assert fake.answers("general") == []
    fake.transcript.check()


async def test_where_no_thread_may_be_opened_the_answer_stays_in_the_channel(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.forbid("general", "CREATE_PUBLIC_THREADS")
    async with gateway_at(fake, tmp_path, threads="open") as gateway:
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    fake.transcript.check()


@pytest.mark.parametrize(("threads", "answers"), [("off", 1), ("continue", 2)])
async def test_in_a_thread_that_the_bot_takes_part_in_it_may_need_no_mention(
    fake: FakeDiscord, tmp_path: Path, threads: str, answers: int
) -> None:
    thread, other = fake.start_thread("general", "aside"), fake.start_thread("general", "other")
    async with gateway_at(fake, tmp_path, threads=threads) as gateway:
        fake.say(other, "nobody asked the bot")
        fake.say(thread, f"{fake.mention} one")
        await settled(gateway, 1)
    async with gateway_at(fake, tmp_path, threads=threads) as gateway:
        fake.say(thread, "two")
        fake.say("general", f"{fake.mention} three")
        await settled(gateway, answers + 1)
    assert fake.answers(thread) == ["You said: one", "You said: two"][:answers]
    assert fake.answers(other) == []


async def test_an_archived_thread_is_written_in_again(fake: FakeDiscord, tmp_path: Path) -> None:
    thread = fake.start_thread("general", "aside")
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        go_on = asyncio.Event()
        models.then(Reply((Say("one"), Gate(go_on), Say(" two"))))
        fake.say(thread, f"{fake.mention} hello")
        await fake.until(lambda: fake.answers(thread) == ["one"])
        fake.archive(thread)
        go_on.set()
        await settled(gateway, 1)
    assert fake.answers(thread) == ["one two"]


async def test_a_changed_message_is_answered_anew(fake: FakeDiscord, tmp_path: Path) -> None:
    dm = fake.dm("ada")
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        asked = fake.say(dm, "helo")
        await settled(gateway, 1)
        fake.edit(dm, asked, "hello")
        await settled(gateway, 2)
        assert [request.user_text for request in models.requests] == ["helo", "hello"]
        assert "helo" not in str(models.requests[-1].body).replace("hello", "")
    assert fake.answers(dm)[-1] == "You said: hello"
    fake.transcript.check()


async def test_changed_messages_may_be_ignored(fake: FakeDiscord, tmp_path: Path) -> None:
    dm = fake.dm("ada")
    async with gateway_at(fake, tmp_path, edits="ignore") as gateway:
        asked = fake.say(dm, "helo")
        await settled(gateway, 1)
        fake.edit(dm, asked, "hello")
        fake.say(dm, "bye")
        await settled(gateway, 2)
    assert fake.answers(dm) == ["You said: helo", "You said: bye"]


async def test_what_is_spoken_is_heard(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path, plugins=[Hearing()]) as gateway:
        fake.say(fake.dm("ada"), "", attach={"voice-message.ogg": ogg_opus()}, spoken=True)
        await settled(gateway, 1)
        assert fake.answers(fake.dm("ada")) == [f"You said: audio data:audio/ogg {len(ogg_opus())}"]
    fake.transcript.check()


async def test_a_deleted_message_needs_no_answer_any_more(fake: FakeDiscord, tmp_path: Path) -> None:
    dm = fake.dm("ada")
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        models.then(Reply((Say("never"), Gate(asyncio.Event()))))
        fake.say(dm, "first")
        await until(lambda: len(models.requests) == 1)
        second = fake.say(dm, "second")
        third = fake.say(dm, "third")
        fake.delete(dm, second)
        fake.delete(dm, fake.messages(dm)[0].id)
        await settled(gateway, 3)
        assert [request.user_text for request in models.requests][1:] == ["third"]
    assert fake.answers(dm) == ["You said: third"]
    assert third


async def test_files_are_read_and_those_that_cannot_be_are_named(fake: FakeDiscord, tmp_path: Path) -> None:
    png = bytes.fromhex("89504e470d0a1a0a") + b"picture"
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, file_bytes=1000) as gateway,
    ):
        fake.say(
            fake.dm("ada"),
            "look",
            attach={"notes.txt": b"remember the milk", "plan.png": png, "huge.bin": b"\0" * 2000},
        )
        fake.say(fake.dm("ada"), "", attach={"../../only.txt": b"just a file"})
        await settled(gateway, 2)
        first, second = (str(request.body) for request in models.requests)
    assert "remember the milk" in first
    assert "image_url" in first or "base64" in first
    assert "huge.bin" in first
    assert "larger than 1000 bytes" in first
    assert "just a file" in second
    assert ".." not in second


async def test_two_bots_answer_side_by_side(tmp_path: Path) -> None:
    async with (
        FakeDiscord(bot="one") as one,
        FakeDiscord(bot="two", token="other") as two,
        FakeModels() as models,
    ):
        settings = settings_for(tmp_path, models, {"accounts": {"a": bot_at(one), "b": bot_at(two)}})
        gateway = Gateway(settings)
        async with gateway.running():
            await until(lambda: healthy(gateway, "discord.a") and healthy(gateway, "discord.b"))
            one.say(one.dm("ada"), "hello one")
            two.say(two.dm("ada"), "hello two")
            await settled(gateway, 2)
        assert one.answers(one.dm("ada")) == ["You said: hello one"]
        assert two.answers(two.dm("ada")) == ["You said: hello two"]
        one.transcript.check()
        two.transcript.check()


async def test_a_wrong_token_is_said_plainly_and_the_others_run(
    fake: FakeDiscord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeModels() as models:
        accounts = {"good": bot_at(fake), "bad": {**bot_at(fake), "token": "wrong"}, "none": {**bot_at(fake)}}
        accounts["none"]["token"] = "  "
        gateway = Gateway(settings_for(tmp_path, models, {"accounts": accounts}))
        async with gateway.running():
            await until(lambda: healthy(gateway, "discord.good"))
            await until(lambda: "token" in gateway.health()["discord.bad"][1])
            assert gateway.health()["discord.none"] == (
                False,
                "channels.discord.none.token: is missing; it is on the bot's page",
            )
            fake.say(fake.dm("ada"), "hello")
            await settled(gateway, 1)
    assert fake.answers(fake.dm("ada")) == ["You said: hello"]
    written = capsys.readouterr()
    assert "channels.discord.bad: 401 Discord does not know this token" in written.out + written.err
    assert "Traceback" not in written.out + written.err


async def test_an_intent_that_is_not_switched_on_is_said_plainly(tmp_path: Path) -> None:
    async with FakeDiscord(privileged=()) as fake, FakeModels() as models:
        gateway = Gateway(settings_for(tmp_path, models, bot_at(fake)))
        async with gateway.running():
            await until(lambda: "Message Content Intent" in gateway.health()["discord"][1])


async def test_only_those_who_may_talk_to_it_are_answered(fake: FakeDiscord, tmp_path: Path) -> None:
    ada = fake.user("ada").id
    async with gateway_at(fake, tmp_path, allow=[ada]) as gateway:
        await fake.until(lambda: bool(fake.transcript.of(REGISTER)))
        fake.say(fake.dm("bob"), "hello", "bob")
        fake.say("general", f"{fake.mention} hello", "bob")
        pressed = fake.slash("general", "ask", {"text": "hello"}, "bob")
        fake.say(fake.dm("ada"), "hello")
        await fake.until(lambda: fake.interaction(pressed).state == "answered")
        await fake.until(lambda: bool(fake.answers(fake.dm("ada")) and fake.answers(fake.dm("bob"))))
        await until(lambda: gateway.parts.dispatcher.waiting == 0)
    [told] = fake.answers(fake.dm("bob"))
    assert "trunkline pair approve" in told
    (whisper,) = [m for m in fake.messages("general") if m.author == fake.bot_id]
    assert whisper.ephemeral
    assert fake.answers(fake.dm("ada")) == ["You said: hello"]
    fake.transcript.check()


async def test_where_it_may_not_read_back_it_answers_without_a_reference(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.forbid("general", "READ_MESSAGE_HISTORY")
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    assert fake.messages("general")[-1].reference is None
    fake.transcript.check()
